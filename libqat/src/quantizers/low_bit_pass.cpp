#include "quantizers/low_bit_pass.h"

#include "autograd/chunk_sums.h"
#include "autograd/dense_view.h"
#include "kernels/low_bit_weight.h"
#include <qat/numerics/low_bit_weight.h>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace qat::detail {
namespace {

using torch::Tensor;

Tensor dense(const Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x.resolve_neg() : x.contiguous();
}

/// Calls function(t, begin, end), t[0] being tanh(x[begin]), for blocks that stay in the cache; keeps it in
/// `kept` if that is defined. The tanh is ATen's, whose bits traces have.
template <class T, class Function>
void for_tanh(const Tensor& x, const Tensor& kept, const Function& function) {
  constexpr std::int64_t kTanhBlock = 16384;
  const auto flat = x.as_strided({x.numel()}, {1});
  const auto all = kept.defined() ? kept.as_strided({x.numel()}, {1}) : Tensor();
  at::parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    const torch::NoGradGuard no_grad;
    const auto block = kept.defined() ? Tensor() : torch::empty({kTanhBlock}, x.options());
    for (std::int64_t at = begin; at < end; at += kTanhBlock) {
      const std::int64_t length = std::min(kTanhBlock, end - at);
      auto part = kept.defined() ? all.narrow(0, at, length) : block.narrow(0, 0, length);
      at::tanh_out(part, flat.narrow(0, at, length));
      function(part.template const_data_ptr<T>(), at, at + length);
    }
  });
}

template <class T>
class Pass {
 public:
  Pass(const Tensor& w, const LowBitWeightOptions& options)
      : w_(w),
        options_(options),
        view_(*dense_view(w, resolve_axis(w, options.axis))),
        scale_(static_cast<std::size_t>(view_.channels)) {
    job_.view = unrolled(view_);
    job_.x = w.const_data_ptr<T>();
    if (options.kind == LowBitWeightKind::kDorefa) {
      levels_ = static_cast<T>((std::int64_t{1} << options.bits) - 1);
      scale_[0] = static_cast<T>(1.0 / static_cast<double>(levels_));
    } else {
      measure();
    }
  }

  Tensor scale() const {
    const auto scale = torch::empty({view_.channels}, w_.options());
    std::copy(scale_.begin(), scale_.end(), scale.template mutable_data_ptr<T>());
    return options_.axis ? scale : scale.reshape({});
  }

  T largest() const { return largest_; }

  const Tensor& tanh() const { return tanh_; }

  Tensor values(LowBitOutput output) {
    const auto out = torch::empty_like(w_);
    const auto scale = output == LowBitOutput::kCodes ? std::vector<T>(scale_.size(), T(1)) : scale_;
    const auto scale_entries = entries(scale);
    const auto threshold_entries = entries(threshold_);
    auto job = job_;
    job.scale = scale_entries.data();
    job.threshold = threshold_entries.data();
    job.out = out.template mutable_data_ptr<T>();
    const auto set = kernels::best_instruction_set();
    if (options_.kind == LowBitWeightKind::kDorefa) {
      job.task = kernels::LowBitTask::kDorefa;
      job.levels = levels_;
      job.largest = largest_ = largest_tanh(w_).template item<T>();
      job.view = {};
      if (output == LowBitOutput::kLearning) tanh_ = torch::empty_like(w_);
      for_tanh<T>(w_, tanh_, [&](const T* t, std::int64_t begin, std::int64_t end) {
        auto part = job;
        part.view.inner = end - begin;
        part.x = t;
        part.out = job.out + begin;
        kernels::run_low_bit(part, 0, end - begin, set);
      });
      return out;
    }
    job.task = options_.kind == LowBitWeightKind::kBinary ? kernels::LowBitTask::kBinary
                                                          : kernels::LowBitTask::kTernary;
    at::parallel_for(0, w_.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      kernels::run_low_bit(job, begin, end, set);
    });
    return out;
  }

 private:
  void measure() {
    const auto magnitudes = sums({});
    const auto count = static_cast<double>(w_.numel() / view_.channels);
    const std::size_t channels = scale_.size();
    for (std::size_t c = 0; c < channels; ++c)
      scale_[c] = static_cast<T>(magnitudes[c] / count);
    if (options_.kind == LowBitWeightKind::kBinary) return;
    threshold_.resize(channels);
    for (std::size_t c = 0; c < channels; ++c)
      threshold_[c] = static_cast<T>(kTernaryThreshold) * scale_[c];
    const auto kept = sums(threshold_);
    for (std::size_t c = 0; c < channels; ++c) {
      const double alpha = kept[c] / std::max(1.0, kept[channels + c]);
      scale_[c] = std::isfinite(scale_[c]) ? static_cast<T>(alpha) : std::numeric_limits<T>::quiet_NaN();
    }
  }

  /// A table for the kernels' view from one value for each channel.
  std::vector<T> entries(const std::vector<T>& values) const {
    if (values.empty() || job_.view.channels == view_.channels) return values;
    std::vector<T> all;
    for (std::int64_t i = 0; i < job_.view.channels; ++i)
      all.push_back(values[channel_of(i)]);
    return all;
  }

  std::size_t channel_of(std::int64_t entry) const {
    return static_cast<std::size_t>(
        job_.view.channels == view_.channels ? entry : entry / view_.inner % view_.channels);
  }

  /// The kernels' sums, [kLowBitSums][channels].
  std::vector<double> sums(const std::vector<T>& threshold) const {
    const auto table = entries(threshold);
    auto job = job_;
    job.threshold = threshold.empty() ? nullptr : table.data();
    const auto set = kernels::best_instruction_set();
    ChunkSums sums(job.view, w_.numel(), kernels::kLowBitSums);
    sums.run([&](std::int64_t begin, std::int64_t end, double* to) {
      kernels::run_low_bit_sums(job, begin, end, set, to);
    });
    std::vector<double> totals(kernels::kLowBitSums * scale_.size());
    for (std::size_t k = 0; k < kernels::kLowBitSums; ++k) {
      sums.for_each(static_cast<std::int64_t>(k), [&](std::int64_t entry, double value) {
        totals[k * scale_.size() + channel_of(entry)] += value;
      });
    }
    return totals;
  }

  Tensor w_;
  LowBitWeightOptions options_;
  kernels::ChannelView view_;
  std::vector<T> scale_;
  std::vector<T> threshold_;
  T levels_ = 1;
  T largest_ = 1;
  Tensor tanh_;
  kernels::LowBitJob<T> job_;
};

template <class T>
LowBitResult run_pass(const Tensor& w, const LowBitWeightOptions& options, LowBitOutput output) {
  Pass<T> pass(w, options);
  LowBitResult result;
  result.scale = pass.scale();
  if (output != LowBitOutput::kScale) result.values = pass.values(output);
  result.largest = static_cast<double>(pass.largest());
  result.tanh = pass.tanh();
  return result;
}

kernels::LowBitTask gradient_task(LowBitWeightKind kind) {
  switch (kind) {
    case LowBitWeightKind::kBinary:
      return kernels::LowBitTask::kBinaryGradient;
    case LowBitWeightKind::kTernary:
      return kernels::LowBitTask::kTernaryGradient;
    case LowBitWeightKind::kDorefa:
      break;
  }
  return kernels::LowBitTask::kDorefaGradient;
}

/// The gradient of w; x is w, for DoReFa tanh(w).
template <class T>
Tensor gradient(LowBitWeightKind kind, const Tensor& x, const Tensor& gradient, double largest) {
  const auto dy = same_order(gradient, x) ? gradient : torch::empty_like(x).copy_(gradient);
  const auto dx = torch::empty_like(x);
  const auto set = kernels::best_instruction_set();
  const kernels::LowBitJob<T> job{.task = gradient_task(kind),
                                  .view = {1, 1, x.numel()},
                                  .largest = static_cast<T>(largest),
                                  .x = x.const_data_ptr<T>(),
                                  .dy = dy.const_data_ptr<T>(),
                                  .out = dx.mutable_data_ptr<T>()};
  at::parallel_for(0, x.numel(), kGrain,
                   [&](std::int64_t begin, std::int64_t end) { kernels::run_low_bit(job, begin, end, set); });
  return dx;
}

struct LowBitFunction : torch::autograd::Function<LowBitFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& w,
                        const LowBitWeightOptions& options) {
    const auto result = low_bit_pass(w, options, LowBitOutput::kLearning);
    context->saved_data["kind"] = static_cast<std::int64_t>(options.kind);
    context->saved_data["largest"] = result.largest;
    // Ternary weights pass the gradient as it is, but to NaN; without one their scale is finite.
    const bool passes_all =
        options.kind == LowBitWeightKind::kTernary && torch::isfinite(result.scale).all().item<bool>();
    context->saved_data["passes_all"] = passes_all;
    if (passes_all) return result.values;
    const bool is_dorefa = options.kind == LowBitWeightKind::kDorefa;
    context->save_for_backward(is_dorefa ? torch::autograd::variable_list{w, result.tanh}
                                         : torch::autograd::variable_list{w});
    return result.values;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto kind = static_cast<LowBitWeightKind>(context->saved_data["kind"].toInt());
    const auto& dy = gradients[0];
    if (context->saved_data["passes_all"].toBool()) return {dy, Tensor()};
    const auto saved = context->get_saved_variables();
    const auto& w = saved[0];
    const double largest = context->saved_data["largest"].toDouble();
    if (torch::GradMode::is_enabled()) {  // a gradient of the gradient follows
      const auto passes = kind == LowBitWeightKind::kBinary ? w.abs() <= 1 : w == w;
      auto passed = dy;
      if (kind == LowBitWeightKind::kDorefa) {
        const auto t = torch::tanh(w.masked_fill(~passes, 0));
        passed = dy / largest * (1 - t * t);
      }
      return {torch::where(passes, passed, torch::zeros_like(dy)), Tensor()};
    }
    const auto& x = saved.back();
    const bool is_double = x.scalar_type() == torch::kDouble;
    return {is_double ? gradient<double>(kind, x, dy, largest) : gradient<float>(kind, x, dy, largest),
            Tensor()};
  }
};

template <class T>
Tensor largest_magnitude(const Tensor& w) {
  constexpr std::int64_t kMost = 65;
  T parts[kMost] = {};
  const auto set = kernels::best_instruction_set();
  const auto* const x = w.const_data_ptr<T>();
  const std::int64_t chunks =
      for_chunks(w.numel(), [&](std::int64_t begin, std::int64_t end, std::int64_t k) {
        parts[k] = kernels::run_largest_magnitude(x, begin, end, set);
      });
  T result = 0;
  for (std::int64_t k = 0; k < chunks; ++k)
    result = parts[k] > result || std::isnan(parts[k]) ? parts[k] : result;
  return torch::scalar_tensor(result, w.options());
}

}  // namespace

bool has_low_bit_pass(const Tensor& w) {
  return w.is_cpu() && w.layout() == torch::kStrided && w.numel() > 0 && !torch::jit::tracer::isTracing() &&
         (w.scalar_type() == torch::kFloat || w.scalar_type() == torch::kDouble);
}

LowBitResult low_bit_pass(const Tensor& w, const LowBitWeightOptions& options, LowBitOutput output) {
  const torch::NoGradGuard no_grad;
  const auto x = dense(w.detach());
  return x.scalar_type() == torch::kDouble ? run_pass<double>(x, options, output)
                                           : run_pass<float>(x, options, output);
}

Tensor low_bit_quantize(const Tensor& w, const LowBitWeightOptions& options) {
  if (!torch::GradMode::is_enabled() || !w.requires_grad())
    return low_bit_pass(w, options, LowBitOutput::kValues).values;
  return LowBitFunction::apply(dense(w), options);
}

Tensor largest_tanh(const Tensor& w) {
  const torch::NoGradGuard no_grad;
  const auto at = w.detach();
  const auto magnitude = !has_low_bit_pass(at)                ? at.abs().max()
                         : at.scalar_type() == torch::kDouble ? largest_magnitude<double>(dense(at))
                                                              : largest_magnitude<float>(dense(at));
  const auto largest = torch::tanh(magnitude);
  return torch::where(largest > 0, largest, torch::ones_like(largest));
}

}  // namespace qat::detail
