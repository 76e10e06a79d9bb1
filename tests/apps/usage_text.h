#pragma once

#include <string>

#include "support/catch.h"
#include "support/run_config.h"

namespace qat::apps::testing {

/// The message of the UsageError that `act` throws; fails the test when it throws none.
template <typename Act>
std::string usage_text(Act&& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what();
  }
  FAIL("expected a UsageError");
  return {};
}

}  // namespace qat::apps::testing
