#pragma once

#include <string>

#include "support/run_result.h"

namespace qat::apps {

/// The text of report.html: curves, the results, each layer's packed weights and slots with their scales,
/// histograms of the weights' codes, the configuration; under a budget, what it limits and its width over the
/// epochs. One file that needs no other.
std::string report_html(const RunResult& result);

}  // namespace qat::apps
