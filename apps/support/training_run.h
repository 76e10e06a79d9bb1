#pragma once

#include <filesystem>

#include "support/dataset.h"
#include "support/progress.h"
#include "support/run_config.h"
#include "support/run_result.h"

namespace qat::apps {

/// The data set that a configuration names. Throws: c10::Error, as `load_dataset`.
Dataset load_configured_dataset(const RunConfig& config);

/// Trains in float, records ranges, trains with quantizers, saves, exports, reads the exported file back and
/// compares. Writes all files of a run into the folder `out`: config.toml first, metrics.csv (and layers.csv)
/// after each epoch, summary.json last. Files of an earlier run there are removed once data, model and
/// optimizer are ready; until then nothing in `out` is touched. Threads and random seed of the process are
/// set as configured. Throws: UsageError before anything is removed or trained if a budget cannot be met or a
/// layer's width names no layer, or later if the recorded ranges make a budget impossible; c10::Error if the
/// model cannot be built for the data, training diverges, an export disagrees, or a file cannot be written.
RunResult run_training(RunConfig config, const Dataset& dataset, const std::filesystem::path& out,
                       Progress& progress);

}  // namespace qat::apps
