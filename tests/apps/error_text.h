#pragma once

#include <string>

#include "support/catch.h"

namespace qat::apps::testing {

/// The message of the `c10::Error` that `act` throws; fails the test when it throws none.
template <typename Act>
std::string error_text(Act&& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  FAIL("expected a c10::Error");
  return {};
}

}  // namespace qat::apps::testing
