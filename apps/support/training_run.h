#pragma once

#include "support/dataset.h"
#include "support/output_folder.h"
#include "support/progress.h"
#include "support/run_config.h"
#include "support/run_result.h"

namespace qat::apps {

/// The data set that a configuration names. Throws: c10::Error, as `load_dataset`.
Dataset load_configured_dataset(const RunConfig& config);

/// Trains in float, records ranges, trains with quantizers, saves, exports, reads the exported file back and
/// compares. Writes all files of a run into `folder`: config.toml first, metrics.csv after each epoch,
/// summary.json last. Threads and random seed of the process are set as configured. Throws: c10::Error if
/// training diverges, an export disagrees, or a file cannot be written.
RunResult run_training(RunConfig config, const Dataset& dataset, const OutputFolder& folder,
                       Progress& progress);

}  // namespace qat::apps
