#pragma once

/// Everything, for programs: `#include <qat/qat.h>`, then `namespace nn = qat::nn;`.
#include <qat/export/torchscript.h>
#include <qat/nn/nn.h>
#include <qat/schedulers/checkpoint.h>
#include <qat/schedulers/file_digest.h>
#include <qat/schedulers/qat_scheduler.h>
#include <qat/version.h>

#include <torch/torch.h>
