#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace qat::detail {

/// The enumerators of a type with the names that configuration files use.
template <class Enum, std::size_t N>
using EnumNames = std::array<std::pair<Enum, std::string_view>, N>;

template <class Enum, std::size_t N>
std::string enum_name(const EnumNames<Enum, N>& names, Enum value) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.first == value; });
  TORCH_INTERNAL_ASSERT(found != names.end());
  return std::string(found->second);
}

/// Reads a name in any case. `what` names the setting in the error. Throws: c10::ValueError listing the
/// names.
template <class Enum, std::size_t N>
Enum parse_enum(const EnumNames<Enum, N>& names, std::string_view what, std::string_view text) {
  const auto same_letter = [](unsigned char a, unsigned char b) {
    return std::tolower(a) == std::tolower(b);
  };
  std::string allowed;
  for (const auto& [value, name] : names) {
    if (std::equal(name.begin(), name.end(), text.begin(), text.end(), same_letter)) return value;
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  }
  TORCH_CHECK_VALUE(false, "unknown ", what, " '", text, "'; allowed: ", allowed);
}

}  // namespace qat::detail
