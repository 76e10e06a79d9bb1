#include "schedulers/width_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qat::detail {
namespace {

std::int64_t budget_bytes(double kilobytes) {
  return static_cast<std::int64_t>(std::floor(kilobytes * static_cast<double>(kBytesPerKilobyte)));
}

std::vector<WidthRequest> requests_of(const std::vector<BudgetedSlot>& slots) {
  std::vector<WidthRequest> requests;
  for (const auto& each : slots)
    requests.push_back(each.request);
  return requests;
}

void set_limit(const BudgetedSlot& each, const LayerMap& layers, std::int64_t bits) {
  if (const auto quantizer = limitable(each.slot, layers))
    quantizer->limit_bits(std::max(bits, quantizer->fewest_bits()));
}

void read_wishes(std::vector<BudgetedSlot>& slots, const LayerMap& layers) {
  for (auto& each : slots) {
    const auto quantizer = limitable(each.slot, layers);
    each.request.wanted = static_cast<double>(each.request.max_bits);
    if (!quantizer) continue;
    each.request.wanted = quantizer->wanted_bits();
    each.request.min_bits =
        std::min(std::max(each.request.min_bits, quantizer->fewest_bits()), each.request.max_bits);
  }
}

/// Without a budget the configured width is the limit; with one, the widths closest to the wanted ones.
void limit_widths(std::vector<BudgetedSlot>& slots, const LayerMap& layers, double budget_kb) {
  std::vector<std::int64_t> widths;
  if (budget_kb > 0) {
    read_wishes(slots, layers);
    for (auto& each : slots)  // what is asked for in full, the rounding of codes included
      each.request.wanted = std::ceil(each.request.wanted);
    widths = widths_within_budget(requests_of(slots), budget_bytes(budget_kb));
  }
  for (std::size_t i = 0; i < slots.size(); ++i)
    set_limit(slots[i], layers, widths.empty() ? slots[i].request.max_bits : widths[i]);
}

/// The most bits of a tensor within a limit for each tensor.
std::int64_t widest_within(const WidthRequest& request, std::int64_t bytes) {
  std::int64_t bits = request.max_bits;
  while (bits > 0 && packed_code_bytes(request.count, bits) > bytes)
    --bits;
  return bits;
}

torch::Tensor kilobytes(const BudgetedSlot& each, const LayerMap& layers) {
  const auto quantizer = limitable(each.slot, layers);
  const auto most = static_cast<double>(each.request.max_bits);
  auto bits = quantizer ? quantizer->bit_count() : torch::tensor(most, torch::kDouble);
  bits = bits - (bits.detach() - most).clamp_min(0);  // the limit hides bits, not their gradient
  const auto& further = each.request.further_counts;
  const auto count = std::accumulate(further.begin(), further.end(), each.request.count);
  return (bits * (static_cast<double>(count) / 8.0) + static_cast<double>(each.request.fixed_bytes)) /
         static_cast<double>(kBytesPerKilobyte);
}

torch::Tensor excess(const torch::Tensor& size, double budget_kb, double lambda) {
  return lambda * torch::relu(size - budget_kb).square();
}

}  // namespace

void check_budgets(const std::vector<BudgetedSlot>& weights, const std::vector<BudgetedSlot>& activations,
                   const QATConfig& config) {
  const auto check = [](const char* field, double budget_kb, std::int64_t smallest) {
    TORCH_CHECK_VALUE(smallest <= budget_bytes(budget_kb), "QATConfig: ", field, " ", budget_kb,
                      " kB cannot be met: with the fewest bits everywhere it takes ", smallest,
                      " bytes; expected at least ",
                      fmt::format("{:.4f}", std::ceil(static_cast<double>(smallest) / 1024.0 * 1e4) / 1e4),
                      " kB");
  };
  if (config.weight_budget_kb > 0)
    check("weight_budget_kb", config.weight_budget_kb, smallest_packed_bytes(requests_of(weights)));
  if (config.activation_budget_kb <= 0) return;
  if (config.activation_budget == ActivationBudget::kSum)
    return check("activation_budget_kb", config.activation_budget_kb,
                 smallest_packed_bytes(requests_of(activations)));
  std::int64_t largest = 0;
  for (const auto& each : activations)
    largest = std::max(largest, packed_code_bytes(each.request.count, each.request.min_bits));
  check("activation_budget_kb", config.activation_budget_kb, largest);
}

void project_widths(std::vector<BudgetedSlot> weights, std::vector<BudgetedSlot> activations,
                    const LayerMap& layers, const QATConfig& config) {
  limit_widths(weights, layers, config.weight_budget_kb);
  const bool is_sum = config.activation_budget == ActivationBudget::kSum;
  if (config.activation_budget_kb > 0 && !is_sum) {
    for (auto& each : activations)
      each.request.max_bits = widest_within(each.request, budget_bytes(config.activation_budget_kb));
  }
  limit_widths(activations, layers, is_sum ? config.activation_budget_kb : 0.0);
}

torch::Tensor size_penalty(const std::vector<BudgetedSlot>& weights,
                           const std::vector<BudgetedSlot>& activations, const LayerMap& layers,
                           const QATConfig& config) {
  auto penalty = torch::zeros({}, torch::kDouble);
  if (config.weight_budget_kb > 0) {
    auto size = torch::zeros({}, torch::kDouble);
    for (const auto& each : weights)
      size = size + kilobytes(each, layers);
    penalty = penalty + excess(size, config.weight_budget_kb, config.budget_penalty);
  }
  if (config.activation_budget_kb > 0) {
    auto size = torch::zeros({}, torch::kDouble);
    for (const auto& each : activations) {
      const auto part = kilobytes(each, layers);
      size = config.activation_budget == ActivationBudget::kSum ? size + part
                                                                : torch::where(part > size, part, size);
    }
    penalty = penalty + excess(size, config.activation_budget_kb, config.budget_penalty);
  }
  return penalty;
}

}  // namespace qat::detail
