#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <initializer_list>
#include <string>

namespace qat::testing {

/// "" if `function` throws an exception whose text holds all `words`, else what is missing.
/// Used as CHECK(error_lacks([&] { ... }, {"axis 3", "shape"}) == "").
template <class Function>
std::string error_lacks(Function&& function, std::initializer_list<std::string> words) {
  std::string text;
  try {
    function();
    return "no exception";
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  for (const auto& word : words) {
    if (text.find(word) == std::string::npos) return "'" + word + "' is not in: " + text;
  }
  return "";
}

}  // namespace qat::testing
