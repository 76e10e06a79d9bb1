#pragma once

#include <filesystem>

#include "support/dataset.h"
#include "support/progress.h"
#include "support/run_config.h"
#include "support/run_options.h"
#include "support/run_result.h"

namespace qat::apps {

/// The data set that a configuration names. Throws: c10::Error, as `load_dataset`.
Dataset load_configured_dataset(const RunConfig& config);

/// Whether the folder holds a run that came to its end.
bool is_finished(const std::filesystem::path& out);

/// Trains in float, records ranges, trains with quantizers, saves, exports, reads the exported file back and
/// compares. Writes all files of a run into the folder `out`: config.toml first, metrics.csv (and layers.csv)
/// after each epoch, summary.json last. Files of an earlier run there are removed once data, model and
/// optimizer are ready; until then nothing in `out` is touched. Threads and random seed of the process are
/// set as configured.
///
/// While it runs, checkpoints/resume.qat holds its state; a run that is resumed from there ends with the bits
/// of one that was not stopped. After `stop_on_signals`, a signal ends the run behind the step that it found,
/// with that state saved.
///
/// Throws: UsageError before anything is removed or trained if a budget cannot be met, a layer's width names
/// no layer or the stopped run had another configuration, or later if the recorded ranges make a budget
/// impossible; c10::Error if the model cannot be built for the data, training diverges, an export disagrees,
/// a file cannot be read or written, or a signal came.
RunResult run_training(RunConfig config, const Dataset& dataset, const std::filesystem::path& out,
                       Progress& progress, const RunOptions& options = {});

}  // namespace qat::apps
