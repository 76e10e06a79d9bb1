#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qat {

/// For messages about a word that is not known: " (did you mean 'weight_bits'?)", the known word with the
/// fewest letters to change, or "" if none is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace qat
