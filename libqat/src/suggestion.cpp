#include <qat/suggestion.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace qat {
namespace {

/// Letters to insert, remove or replace (Levenshtein).
std::int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::int64_t diagonal = std::exchange(row[0], static_cast<std::int64_t>(i));
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const auto distance = [&](const std::string& each) { return edit_distance(word, each); };
  const auto nearest = std::min_element(
      known.begin(), known.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  if (nearest == known.end() || distance(*nearest) > static_cast<std::int64_t>(word.size() + 1) / 2)
    return "";
  return " (did you mean '" + *nearest + "'?)";
}

}  // namespace qat
