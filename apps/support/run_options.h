#pragma once

namespace qat::apps {

/// What does not change the outcome of a run.
struct RunOptions {
  bool resume = false;             ///< go on with the run that was stopped in the folder, if there is one.
  double checkpoint_seconds = 60;  ///< between checkpoints to resume from; 0: after each step.
};

}  // namespace qat::apps
