// clone(), save() and load() of models in every phase.
#include "slot_contents.h"

#include <functional>
#include <sstream>

#include "support/catch.h"
#include "support/errors.h"

namespace {

namespace nn = qat::nn;
using qat::testing::error_lacks;

/// conv -> bn -> relu -> add (with itself) -> linear, with functional code in between.
struct NetImpl : nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 2, 3).bias(false)));
    bn = register_module("bn", nn::BatchNorm2d(2));
    relu = register_module("relu", nn::ReLU());
    add = register_module("add", nn::Add());
    tail = register_module("tail", nn::Sequential(nn::Flatten(), nn::Dropout(0.5), nn::Linear(32, 3)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = relu->forward(bn->forward(conv->forward(x)));
    return tail->forward(add->forward(y, y));
  }
  nn::Conv2d conv = nullptr;
  nn::BatchNorm2d bn = nullptr;
  nn::ReLU relu = nullptr;
  nn::Add add = nullptr;
  nn::Sequential tail = nullptr;
};
TORCH_MODULE(Net);

torch::Tensor example() {
  torch::manual_seed(7);
  return torch::randn({2, 1, 6, 6});
}

void make_float(Net&) {}

void start_recording(Net& net) {
  for (const auto& [path, layer] : nn::quantizable_layers(*net)) {
    layer->hold_parameters(true);
    layer->set_slot(slots::kOutput, slots::recorder());
    if (layer->weight_parameter()) layer->set_slot(slots::kWeight, slots::recorder());
  }
  net->forward(example());
}

void start_training(Net& net) {
  net->conv->set_bias_parameter(torch::tensor({0.3F, -0.2F}));
  net->bn->become_identity();
  net->conv->set_slot(slots::kInput, slots::quantizer(0.1F));
  net->conv->set_slot(slots::kWeight, slots::channel_quantizer(0));
  net->conv->set_slot(slots::kBias, slots::bias_quantizer());
  net->relu->set_slot(slots::kOutput, slots::unsigned_quantizer(0.05F));
  net->add->set_link(slots::kSecondInput, {"relu.output_slot", false, net->relu->slot(slots::kOutput)});
  net->add->set_slot(slots::kOutput, slots::unsigned_quantizer(0.1F));
  auto& linear = net->tail->at<nn::LinearImpl>(2);
  linear.set_link(slots::kInput, {"add.output_slot", false, net->add->slot(slots::kOutput)});
  linear.set_slot(slots::kWeight, slots::channel_quantizer(0));
  linear.set_slot(slots::kBias, slots::bias_quantizer());
  linear.set_link(slots::kOutput, {"add.output_slot", true, net->add->slot(slots::kOutput)});
}

torch::Tensor evaluate(Net& net) {
  const torch::NoGradGuard no_grad;
  const bool training = net->is_training();
  net->eval();
  const auto y = net->forward(example());
  net->train(training);
  return y;
}

template <class Module>
std::string bytes_of(const Module& module) {
  std::ostringstream file;
  torch::save(module, file);
  return file.str();
}

template <class Module>
void load_bytes(Module& module, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::load(module, file);
}

/// Keys and values of parameters and buffers agree, and share no memory.
void check_same_state(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto compare = [](const auto& left, const auto& right) {
    REQUIRE(left.keys() == right.keys());
    for (const auto& item : left) {
      INFO(item.key());
      CHECK(torch::equal(item.value(), right[item.key()]));
      CHECK((item.value().numel() == 0 || item.value().data_ptr() != right[item.key()].data_ptr()));
    }
  };
  compare(a.named_parameters(), b.named_parameters());
  compare(a.named_buffers(), b.named_buffers());
}

const std::vector<std::pair<std::string, std::function<void(Net&)>>> kPhases{
    {"FLOAT", make_float}, {"RECORDING", start_recording}, {"TRAINING", start_training}};

}  // namespace

TEST_CASE("A model clones in every phase", "[modules]") {
  for (const auto& [name, enter] : kPhases) {
    INFO(name);
    Net net;
    enter(net);
    const auto expected = evaluate(net);
    Net copy(std::dynamic_pointer_cast<NetImpl>(net->clone()));
    nn::relink(*copy);
    check_same_state(*net, *copy);
    CHECK(torch::equal(evaluate(copy), expected));
    CHECK(c10::str(*copy) == c10::str(*net));
    // The copy is independent: its links point into itself.
    net->add->clear_slots();
    net->relu->clear_slots();
    CHECK(torch::equal(evaluate(copy), expected));
  }
}

TEST_CASE("A clone with links says that it needs relink", "[modules]") {
  Net net;
  start_training(net);
  Net copy(std::dynamic_pointer_cast<NetImpl>(net->clone()));
  CHECK(error_lacks([&] { copy->forward(example()); },
                    {"qat::nn::Add", "'relu.output_slot'", "qat::nn::relink(model)"}) == "");
  CHECK(error_lacks([&] { nn::relink(*copy->tail); },
                    {"'add.output_slot', which is no slot of this model"}) == "");
  nn::relink(*copy);
  CHECK_NOTHROW(copy->forward(example()));
}

TEST_CASE("A Sequential of layers clones in every phase", "[modules]") {
  nn::Sequential model(nn::Conv2d(1, 2, 3), nn::Dropout(0.5), nn::ReLU(), nn::ConvTranspose2d(2, 1, 3));
  model->eval();
  const auto same = [&] {
    const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
    check_same_state(*model, *copy);
    return torch::equal(copy->forward(example()), model->forward(example()));
  };
  CHECK(same());
  model->at<nn::ReLUImpl>(2).set_slot(slots::kOutput, slots::recorder());
  CHECK(same());
  model->at<nn::ReLUImpl>(2).set_slot(slots::kOutput, slots::unsigned_quantizer(0.1F));
  CHECK(same());
}

TEST_CASE("case 53: a file of every phase loads into a fresh model", "[modules]") {
  for (const auto& [name, enter] : kPhases) {
    INFO(name);
    Net net;
    enter(net);
    const auto expected = evaluate(net);
    Net fresh;
    load_bytes(fresh, bytes_of(net));
    nn::relink(*fresh);
    check_same_state(*net, *fresh);
    CHECK(torch::equal(evaluate(fresh), expected));
    CHECK(c10::str(*fresh) == c10::str(*net));
    CHECK(fresh->conv->holds_parameters() == net->conv->holds_parameters());
  }
}

TEST_CASE("case 58: a loaded quantizer works at once", "[modules]") {
  nn::Sequential model(nn::Identity{}), fresh(nn::Identity{});
  model->at<nn::IdentityImpl>(0).set_slot(slots::kOutput, slots::quantizer(0.25F));
  load_bytes(fresh, bytes_of(model));
  fresh->eval();
  CHECK(fresh->forward(torch::tensor({0.3F})).item<float>() == 0.25F);
}

TEST_CASE("A float file makes a float model of any model", "[modules]") {
  Net source;
  const auto expected = evaluate(source);
  for (const auto& [name, enter] : kPhases) {
    INFO(name);
    Net net;
    enter(net);
    load_bytes(net, bytes_of(source));
    check_same_state(*source, *net);
    CHECK(torch::equal(evaluate(net), expected));
    for (const auto& [path, layer] : nn::quantizable_layers(*net)) {
      CHECK((layer->occupied_slots().empty() && layer->linked_slots().empty() && !layer->holds_parameters()));
    }
  }
}

TEST_CASE("Float files are exchanged with torch layers", "[modules]") {
  torch::nn::Sequential theirs(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2), torch::nn::ReLU());
  nn::Sequential ours(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::ReLU());
  load_bytes(ours, bytes_of(theirs));
  CHECK(torch::equal(ours->forward(example()), theirs->forward(example())));
  nn::Sequential back(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2), torch::nn::ReLU());
  load_bytes(back, bytes_of(ours));
  check_same_state(*back, *ours);
}

TEST_CASE("case 63: every buffer of a fresh slotted model is defined", "[modules]") {
  Net net;
  for (const auto& [path, layer] : nn::quantizable_layers(*net))
    layer->set_slot(slots::kOutput, slots::recorder());
  for (const auto& buffer : net->named_buffers())
    CHECK(buffer.value().defined());
  Net fresh;
  CHECK_NOTHROW(load_bytes(fresh, bytes_of(net)));
  CHECK_NOTHROW(net->clone());
  CHECK_NOTHROW(net->to(torch::kCPU));
}

TEST_CASE("Converting a model keeps statistics and scales in float32", "[modules]") {
  Net net;
  start_training(net);
  net->relu->set_slot(slots::kInput, slots::recorder());
  net->to(torch::kBFloat16);
  for (const auto& buffer : net->named_buffers()) {
    INFO(buffer.key());
    if (buffer.key().find("slot") != std::string::npos)
      CHECK(buffer.value().scalar_type() != torch::kBFloat16);
  }
  CHECK(net->forward(example().to(torch::kBFloat16)).scalar_type() == torch::kBFloat16);
  net->to(torch::kFloat);
  CHECK(net->forward(example()).scalar_type() == torch::kFloat);
}

TEST_CASE("A damaged slot description is refused", "[modules]") {
  const auto load_text = [](const std::string& text) {
    torch::serialize::OutputArchive out;
    out.write("slots", c10::IValue(text));
    std::ostringstream file;
    out.save_to(file);
    std::istringstream stream(file.str());
    torch::serialize::InputArchive in;
    in.load_from(stream);
    nn::ReLU()->load(in);
  };
  CHECK(error_lacks([&] { load_text("["); }, {"is no JSON object"}) == "");
  CHECK(error_lacks([&] { load_text(R"({"slots": [{"slot": "other"}]})"); },
                    {"expected the name of a slot, got 'other'"}) == "");
  CHECK(error_lacks([&] { load_text(R"({"slots": [{"config": {}}]})"); }, {"is damaged"}) == "");
  CHECK(error_lacks([&] { load_text(R"({"slots": [{"slot": "input_slot_99999999999999999999"}]})"); },
                    {"name of a slot"}) == "");
  CHECK(error_lacks([&] { load_text(R"({"folded": true})"); }, {"cannot do"}) == "");
  CHECK(
      error_lacks(
          [&] { load_text(R"({"slots": [{"slot": "weight_slot", "config": {"type": "qat::Recorder"}}]})"); },
          {"qat::Recorder"}) == "");
}
