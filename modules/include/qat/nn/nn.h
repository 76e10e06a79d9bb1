#pragma once

#include <qat/nn/activation.h>
#include <qat/nn/arithmetic.h>
#include <qat/nn/batch_norm.h>
#include <qat/nn/conv.h>
#include <qat/nn/embedding.h>
#include <qat/nn/linear.h>
#include <qat/nn/passthrough.h>
#include <qat/nn/pooling.h>
#include <qat/nn/quantized_functions.h>

#include <torch/nn.h>

/// Everything that torch::nn has, with the layers of this package in place of torch's:
///   namespace nn = qat::nn;
///   nn::Sequential net(nn::Conv2d(1, 8, 3), nn::ReLU(), nn::Flatten());
namespace qat::nn {

// The one using-directive of the project: a qualified name is looked up here first, and in torch::nn if it is
// not found.
using namespace torch::nn;

namespace functional {
using namespace torch::nn::functional;
}

}  // namespace qat::nn
