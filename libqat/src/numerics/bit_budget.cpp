#include <qat/numerics/bit_budget.h>
#include <qat/numerics/rounding.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <tuple>
#include <utility>

namespace qat {
namespace {

std::string request_label(std::span<const WidthRequest> requests, std::size_t layer) {
  const std::string& name = requests[layer].name;
  return name.empty() ? "layer " + std::to_string(layer) : name;
}

void check_requests(std::span<const WidthRequest> requests) {
  for (std::size_t l = 0; l < requests.size(); ++l) {
    const WidthRequest& request = requests[l];
    TORCH_CHECK_VALUE(1 <= request.min_bits && request.min_bits <= request.max_bits && request.max_bits <= 16,
                      "bit budget: ", request_label(requests, l),
                      ": expected 1 <= min_bits <= max_bits <= 16, got min_bits ", request.min_bits,
                      " and max_bits ", request.max_bits);
    std::vector<std::int64_t> values = request.further_counts;
    values.insert(values.end(), {request.count, request.fixed_bytes});
    for (const std::int64_t value : values) {
      TORCH_CHECK_VALUE(value >= 0 && value <= kMaxPackedCount, "bit budget: ", request_label(requests, l),
                        ": expected counts and fixed_bytes of 0 to ", kMaxPackedCount, ", got ", value);
    }
  }
}

std::int64_t bytes_at(const WidthRequest& request, std::int64_t width) {
  std::int64_t bytes = packed_code_bytes(request.count, width) + request.fixed_bytes;
  for (const std::int64_t count : request.further_counts)
    bytes += packed_code_bytes(count, width);
  return bytes;
}

/// The latent width as it counts.
double wanted_width(const WidthRequest& request) {
  const auto lowest = static_cast<double>(request.min_bits);
  const auto highest = static_cast<double>(request.max_bits);
  return std::isnan(request.wanted) ? lowest : std::clamp(request.wanted, lowest, highest);
}

std::int64_t rounded_width(const WidthRequest& request) {
  return static_cast<std::int64_t>(round_to_integer<Rounding::kHalfAwayFromZero>(wanted_width(request)));
}

void check_budget(std::span<const WidthRequest> requests, std::int64_t budget_bytes) {
  const std::int64_t smallest = smallest_packed_bytes(requests);
  if (budget_bytes >= smallest) return;
  std::ostringstream minima;
  for (std::size_t l = 0; l < requests.size(); ++l) {
    minima << (l == 0 ? "" : ", ") << request_label(requests, l) << " " << requests[l].min_bits << " bits ("
           << bytes_at(requests[l], requests[l].min_bits) << " bytes)";
  }
  TORCH_CHECK_VALUE(false, "widths_within_budget: the budget is ", budget_bytes, " bytes (",
                    static_cast<double>(budget_bytes) / kBytesPerKilobyte,
                    " kB), but the smallest possible size, with scales and biases, is ", smallest, " bytes (",
                    static_cast<double>(smallest) / kBytesPerKilobyte, " kB): ", minima.str(),
                    "; raise the budget or lower min_bits");
}

/// One width of a layer with its price.
struct Choice {
  std::int64_t width;
  std::int64_t bytes;
  double distance;  ///< (width - wanted)^2.
};

/// The widths of a layer that can be part of a closest solution: each has fewer bytes and a larger distance
/// than the one before.
using Choices = std::vector<Choice>;

Choices useful_choices(const WidthRequest& request) {
  Choices choices;
  for (std::int64_t width = rounded_width(request); width >= request.min_bits; --width) {
    const double difference = static_cast<double>(width) - wanted_width(request);
    const Choice choice{width, bytes_at(request, width), difference * difference};
    if (!choices.empty() && choice.bytes == choices.back().bytes) continue;
    if (!choices.empty() && choice.distance <= choices.back().distance) choices.pop_back();
    choices.push_back(choice);
  }
  return choices;
}

/// A way down from a choice of a layer: the one with the smallest rise of the distance for a byte saved.
struct Step {
  std::size_t to = 0;
  double rate = std::numeric_limits<double>::infinity();  ///< infinite: there is no way down.
};

Step next_step(const Choices& choices, std::size_t from) {
  Step best;
  for (std::size_t to = from + 1; to < choices.size(); ++to) {
    const double rate = (choices[to].distance - choices[from].distance) /
                        static_cast<double>(choices[from].bytes - choices[to].bytes);
    if (rate < best.rate) best = {to, rate};
  }
  return best;
}

/// The search for the closest widths. All members that are vectors have an element for each layer.
class WidthSearch {
 public:
  WidthSearch(std::span<const WidthRequest> requests, std::int64_t budget) : budget_(budget) {
    for (const WidthRequest& request : requests)
      layers_.push_back(useful_choices(request));
    descend();
    bound();
  }

  std::vector<std::int64_t> run() {
    std::vector<std::vector<Partial>> partials;
    std::vector<Partial> last = {{0, 0.0, 0, 0}};
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      partials.push_back(extended(last, l));
      last = partials.back();
    }
    std::vector<std::int64_t> widths(layers_.size());
    std::size_t at = last.size() - 1;  // the most bytes, so the smallest distance
    for (std::size_t l = layers_.size(); l-- > 0; at = partials[l][at].parent) {
      widths[l] = layers_[l][partials[l][at].choice].width;
    }
    return widths;
  }

 private:
  /// Choices for the layers up to one of them.
  struct Partial {
    std::int64_t bytes;
    double distance;
    std::size_t parent;  ///< index of the partial without the last layer.
    std::size_t choice;  ///< of the last layer.
  };

  /// Takes the cheapest steps until the budget is kept; notes where that ends and what the last step cost.
  void descend() {
    std::vector<Step> steps;
    std::int64_t bytes = 0;
    for (const Choices& choices : layers_) {
      steps.push_back(next_step(choices, 0));
      bytes += choices.front().bytes;
    }
    position_.assign(layers_.size(), 0);
    while (bytes > budget_) {
      const auto cheapest = std::min_element(steps.begin(), steps.end(),
                                             [](const Step& a, const Step& b) { return a.rate < b.rate; });
      const auto l = static_cast<std::size_t>(cheapest - steps.begin());
      bytes += layers_[l][cheapest->to].bytes - layers_[l][position_[l]].bytes;
      position_[l] = cheapest->to;
      rate_ = cheapest->rate;
      *cheapest = next_step(layers_[l], position_[l]);
    }
    refill(budget_ - bytes);
  }

  /// Takes steps back where they fit.
  void refill(std::int64_t left) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Choices& choices = layers_[l];
      const std::int64_t most = choices[position_[l]].bytes + left;
      while (position_[l] > 0 && choices[position_[l] - 1].bytes <= most)
        --position_[l];
      left = most - choices[position_[l]].bytes;
    }
  }

  double priced(const Choice& choice) const {
    return choice.distance + rate_ * static_cast<double>(choice.bytes);
  }

  /// With a price on each byte every layer has a best choice of its own. The sum of these is a lower bound of
  /// the distance; descend() gives an upper one. What lies above the best choices by more than the difference
  /// cannot be part of a closest solution.
  void bound() {
    double upper = 0.0;
    double lower = 0.0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      double best = std::numeric_limits<double>::infinity();
      for (const Choice& choice : layers_[l])
        best = std::min(best, priced(choice));
      lower += best;
      best_so_far_.push_back(lower);
      upper += layers_[l][position_[l]].distance;
    }
    const double price_of_budget = rate_ * static_cast<double>(budget_);
    gap_ = upper - (lower - price_of_budget) + 1e-9 * (1.0 + upper + price_of_budget);
    least_after_.assign(layers_.size(), 0);
    for (std::size_t l = layers_.size(); l-- > 1;) {
      least_after_[l - 1] = least_after_[l] + layers_[l].back().bytes;
    }
  }

  bool is_promising(const Partial& partial, std::size_t l) const {
    return partial.bytes + least_after_[l] <= budget_ &&
           partial.distance + rate_ * static_cast<double>(partial.bytes) - best_so_far_[l] <= gap_;
  }

  /// All promising partials with a choice for layer l, most distant first; of two the better one where one
  /// has neither more bytes nor a larger distance.
  std::vector<Partial> extended(const std::vector<Partial>& before, std::size_t l) const {
    std::vector<Partial> all;
    for (std::size_t parent = 0; parent < before.size(); ++parent) {
      for (std::size_t c = 0; c < layers_[l].size(); ++c) {
        const Choice& choice = layers_[l][c];
        const Partial partial{before[parent].bytes + choice.bytes, before[parent].distance + choice.distance,
                              parent, c};
        if (is_promising(partial, l)) all.push_back(partial);
      }
    }
    std::sort(all.begin(), all.end(), [](const Partial& a, const Partial& b) {
      return std::tie(a.bytes, a.distance, a.parent, a.choice) <
             std::tie(b.bytes, b.distance, b.parent, b.choice);
    });
    std::vector<Partial> best;
    for (const Partial& partial : all) {
      if (best.empty() || partial.distance < best.back().distance) best.push_back(partial);
    }
    return best;
  }

  std::int64_t budget_;
  std::vector<Choices> layers_;
  std::vector<std::size_t> position_;      ///< the choices of descend().
  double rate_ = 0.0;                      ///< the price of a byte: that of the last step.
  double gap_ = 0.0;                       ///< between the bounds.
  std::vector<double> best_so_far_;        ///< sum of the best priced choices up to this layer.
  std::vector<std::int64_t> least_after_;  ///< the fewest bytes of all later layers.
};

/// Gives what is left to layers in order. After the search only bits that bring a layer no closer fit: from 3
/// to 4 where 3.5 is wanted.
void raise_where_it_fits(std::span<const WidthRequest> requests, std::int64_t budget,
                         std::vector<std::int64_t>& widths) {
  std::int64_t left = budget - packed_bytes(requests, widths);
  for (std::size_t l = 0; l < widths.size(); ++l) {
    for (std::int64_t width = widths[l] + 1; width <= rounded_width(requests[l]); ++width) {
      const std::int64_t more = bytes_at(requests[l], width) - bytes_at(requests[l], widths[l]);
      if (more > left) break;
      widths[l] = width;
      left -= more;
    }
  }
}

}  // namespace

std::int64_t packed_bytes(std::span<const WidthRequest> requests, std::span<const std::int64_t> widths) {
  check_requests(requests);
  TORCH_CHECK_VALUE(requests.size() == widths.size(), "packed_bytes: expected a width for each of the ",
                    requests.size(), " layers, got ", widths.size());
  std::int64_t bytes = 0;
  for (std::size_t l = 0; l < requests.size(); ++l)
    bytes += bytes_at(requests[l], widths[l]);
  return bytes;
}

std::int64_t smallest_packed_bytes(std::span<const WidthRequest> requests) {
  std::vector<std::int64_t> widths;
  for (const WidthRequest& request : requests)
    widths.push_back(request.min_bits);
  return packed_bytes(requests, widths);
}

std::vector<std::int64_t> widths_within_budget(std::span<const WidthRequest> requests,
                                               std::int64_t budget_bytes) {
  check_budget(requests, budget_bytes);
  std::vector<std::int64_t> widths;
  for (const WidthRequest& request : requests)
    widths.push_back(rounded_width(request));
  if (packed_bytes(requests, widths) <= budget_bytes) return widths;
  widths = WidthSearch(requests, budget_bytes).run();
  raise_where_it_fits(requests, budget_bytes, widths);
  return widths;
}

}  // namespace qat
