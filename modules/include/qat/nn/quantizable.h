#pragma once

#include <qat/nn/quantizable_layer.h>

#include <torch/nn/cloneable.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string_view>
#include <type_traits>

namespace qat::nn {

/// Makes a qat::nn layer of a module base class that knows the derived class (`torch::nn::ConvNdImpl<2,
/// Conv2dImpl>`, `Stateless<ReLUImpl, ...>`): the base brings options, parameters and printing, this class
/// adds the slots to clone(), save(), load() and printing. Derived classes add `forward`.
template <class Base>
class Quantizable : public Base, public QuantizableLayer {
 public:
  using Base::Base;
  using QuantizableLayer::module;

  torch::nn::Module& module() final { return *this; }
  void reset() override {
    Base::reset();
    reset_slots();
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    Base::save(archive);
    save_slots(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    load_slots(archive);
    Base::load(archive);
  }
  void pretty_print(std::ostream& stream) const override {
    std::ostringstream twin;
    Base::pretty_print(twin);
    print_layer(stream, twin.str());
  }
};

/// The base of layers that have weight and bias: Conv, ConvTranspose, Linear.
template <class Base>
class QuantizableWeighted : public Quantizable<Base> {
 public:
  using Quantizable<Base>::Quantizable;

  torch::Tensor* weight_parameter() final { return &this->weight; }
  torch::Tensor* bias_parameter() final { return &this->bias; }
  void set_bias_parameter(const torch::Tensor& bias) final;
  LayerForm form() const final { return {.folded = bias_added_}; }

 protected:
  void set_form(const LayerForm& form, const QuantizableLayer::Parameters& kept) final;
  /// Number of output channels: the length of a bias.
  virtual std::int64_t output_channels() const = 0;

 private:
  bool bias_added_ = false;
};

/// The options of layers that have none.
struct NoOptions {};

/// A module without parameters. `Twin` prints the options: torch's class of the same name; `void` if there is
/// nothing to print.
template <class Derived, class Twin = void, class Options = NoOptions>
class Stateless : public torch::nn::Cloneable<Derived> {
 public:
  Stateless() requires std::default_initializable<Options>
  = default;
  explicit Stateless(const Options& options_) : options(options_) {}
  /// From what makes the options: `MaxPool2d(2)`, `ReLU(true)`.
  template <class Value>
  requires(!std::same_as<Value, Options> &&
           std::constructible_from<Options, const Value&>) explicit Stateless(const Value& value)
      : options(value) {}

  void reset() override {}
  void pretty_print(std::ostream& stream) const override {
    if constexpr (std::is_void_v<Twin>) {
      stream << this->name().substr(0, this->name().size() - std::string_view("Impl").size()) << "()";
    } else if constexpr (std::is_same_v<Options, NoOptions>) {
      Twin().pretty_print(stream);
    } else {
      Twin(options).pretty_print(stream);
    }
  }

  Options options;
};

}  // namespace qat::nn
