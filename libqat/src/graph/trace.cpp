#include "graph/trace.h"

#include "graph/node_text.h"
#include <qat/graph/layer_scope.h>

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/shape_analysis.h>

#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <unordered_map>

namespace qat::detail {
namespace {

namespace jit = torch::jit;

/// "qat::nn::Conv2dImpl" without "Impl".
std::string layer_type(const torch::nn::Module& layer) {
  std::string name = layer.name();
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

/// A name that Python accepts for a class: "__torch__.qat.Conv2d".
c10::QualifiedName class_name(const torch::nn::Module& module) {
  std::string name = layer_type(module);
  name.erase(0, name.rfind(':') + 1);  // npos + 1 is 0
  for (auto& character : name) {
    if (!std::isalnum(static_cast<unsigned char>(character))) character = '_';
  }
  return c10::QualifiedName(fmt::format("__torch__.qat.{}", name.empty() ? "Module" : name));
}

/// A module tree of the same names that holds the same tensors.
jit::Module mirror(const torch::nn::Module& module, const std::shared_ptr<jit::CompilationUnit>& unit) {
  jit::Module result(class_name(module), unit, /*shouldMangle=*/true);
  result.register_attribute("training", c10::BoolType::get(), module.is_training());
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (parameter.value().defined())
      result.register_parameter(parameter.key(), parameter.value(), /*is_buffer=*/false);
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    if (buffer.value().defined()) result.register_buffer(buffer.key(), buffer.value());
  }
  for (const auto& child : module.named_children()) {
    result.register_module(child.key(), mirror(*child.value(), unit));
  }
  return result;
}

struct RawLayer {
  const torch::nn::Module* module = nullptr;
  std::string path = {};
  std::int64_t call = 0;
  jit::Node* before = nullptr;  // the last node that is not its own
  std::vector<jit::Value*> inputs = {};
  jit::Value* output = nullptr;
};

/// Ties the nodes of the running trace to the layers that make them.
class TraceListener : public CaptureListener {
 public:
  TraceListener(const torch::nn::Module& model, TraceOptions options) : options_(std::move(options)) {
    paths_.emplace(&model, "");
    for (const auto& module : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
      paths_.emplace(module.value().get(), module.key());
    }
    current() = this;
  }
  ~TraceListener() override { current() = nullptr; }

  void enter(const torch::nn::Module& layer, const std::vector<torch::Tensor>& inputs) override {
    if (depth_++ > 0) return;
    const auto path = paths_.find(&layer);
    TORCH_CHECK(path != paths_.end(), options_.who, ": a ", layer_type(layer),
                " runs that is not registered in the model; register it with register_module");
    RawLayer raw{.module = &layer, .path = path->second, .call = calls_[&layer]++};
    for (const auto& input : inputs) {
      TORCH_CHECK_VALUE(input.defined(), options_.who, ": ", path->second, " (", layer_type(layer),
                        ") got an undefined tensor");
      raw.inputs.push_back(jit::tracer::getValueTrace(input));
    }
    raw.before = last_node();
    layers_.push_back(std::move(raw));
  }

  torch::Tensor leave(const torch::nn::Module& layer, const torch::Tensor& output) override {
    if (--depth_ > 0) return output;
    auto& raw = layers_.back();
    TORCH_CHECK(depth_ == 0 && raw.module == &layer, options_.who, ": ", raw.path, " (",
                layer_type(*raw.module), ") began and did not report an output before ", layer_type(layer),
                " did");
    TORCH_CHECK_VALUE(output.defined(), options_.who, ": ", raw.path, " (", layer_type(layer),
                      ") returned an undefined tensor");
    torch::Tensor result = output;
    raw.output = jit::tracer::getValueTrace(result);
    tag_nodes();
    if (!layer_of_.contains(raw.output->node()) || layer_of_.at(raw.output->node()) != index()) {
      if (options_.returned_inputs == TraceOptions::ReturnedInputs::kAlias) {
        result = output.alias();
        raw.output = jit::tracer::getValueTrace(result);
        tag_nodes();
      }
    }
    return result;
  }

  void finish() const {
    TORCH_CHECK(depth_ == 0, options_.who, ": ", layers_.back().path, " (",
                layer_type(*layers_.back().module),
                ") began and did not report its output; return scope.output(y)");
  }

  const std::vector<RawLayer>& layers() const { return layers_; }
  std::int64_t layer_of(const jit::Node* node) const {
    const auto found = layer_of_.find(node);
    return found == layer_of_.end() ? -1 : found->second;
  }

 private:
  static jit::Node* last_node() { return jit::tracer::getTracingState()->graph->return_node()->prev(); }
  std::int64_t index() const { return static_cast<std::int64_t>(layers_.size()) - 1; }
  void tag_nodes() {
    for (auto* node = last_node(); node != layers_.back().before; node = node->prev())
      layer_of_[node] = index();
  }

  TraceOptions options_;
  std::unordered_map<const torch::nn::Module*, std::string> paths_;
  std::unordered_map<const torch::nn::Module*, std::int64_t> calls_;
  std::unordered_map<const jit::Node*, std::int64_t> layer_of_;
  std::vector<RawLayer> layers_;
  std::int64_t depth_ = 0;
};

/// Turns the raw graph of a trace into plain data.
class TraceReader {
 public:
  TraceReader(Trace& trace, const TraceListener& listener) : trace_(trace), listener_(listener) {}

  void read(const jit::Graph& graph, std::size_t input_count) {
    // The inputs of the graph are the module and the tensors.
    for (std::size_t i = 0; i < input_count; ++i) {
      trace_.inputs.push_back(new_value(graph.inputs()[i + 1], {.source = TraceValue::Source::kInput}));
    }
    for (const auto& raw : listener_.layers()) {
      trace_.layers.push_back({.path = raw.path, .type = layer_type(*raw.module), .call = raw.call});
    }
    std::size_t begun = 0;
    const jit::Node* before_next = graph.inputs()[0]->node();
    const auto begin_layers = [&] {
      while (begun < listener_.layers().size() && listener_.layers()[begun].before == before_next) {
        trace_.layers[begun++].first_node = static_cast<std::int64_t>(trace_.nodes.size());
      }
    };
    for (const jit::Node* node : graph.nodes()) {
      begin_layers();
      read_node(node, static_cast<std::int64_t>(begun) - 1);
      before_next = node;
    }
    begin_layers();
    for (std::size_t i = 0; i < trace_.layers.size(); ++i) {
      for (auto* input : listener_.layers()[i].inputs)
        trace_.layers[i].inputs.push_back(value_id(input));
      trace_.layers[i].output = value_id(listener_.layers()[i].output);
    }
  }

  std::int64_t value_id(const jit::Value* value) {
    if (const auto found = ids_.find(value); found != ids_.end()) return found->second;
    if (value->node()->kind() == c10::prim::TracedAttr) {
      const std::string prefix = "__module.";
      return new_value(value, {.source = TraceValue::Source::kAttribute,
                               .name = value->node()->s(c10::attr::scope).substr(prefix.size())});
    }
    return new_value(value, {.source = TraceValue::Source::kConstant});
  }

 private:
  static bool is_tensor(const jit::Value* value) {
    return value->type()->isSubtypeOf(*c10::TensorType::get());
  }

  std::int64_t new_value(const jit::Value* value, TraceValue description) {
    if (const auto type = value->type()->cast<c10::TensorType>()) {
      if (const auto sizes = type->sizes().concrete_sizes()) description.shape = *sizes;
      if (const auto dtype = type->scalarType()) description.dtype = *dtype;
    }
    const auto id = static_cast<std::int64_t>(trace_.values.size());
    trace_.values.push_back(std::move(description));
    ids_.emplace(value, id);
    return id;
  }

  void collect_tensors(const jit::Value* value, std::vector<std::int64_t>& ids) {
    if (is_tensor(value)) {
      ids.push_back(value_id(value));
    } else if (value->node()->kind() == c10::prim::ListConstruct ||
               value->node()->kind() == c10::prim::TupleConstruct) {
      for (const auto* element : value->node()->inputs())
        collect_tensors(element, ids);
    }
  }

  void add_output(std::int64_t node, const jit::Value* output, const std::vector<std::int64_t>& aliased) {
    const auto id = new_value(output, {.source = TraceValue::Source::kNode, .node = node});
    trace_.nodes[node].outputs.push_back(id);
    for (const auto input : aliased)
      trace_.nodes[node].aliases.push_back({id, input});
  }

  void read_node(const jit::Node* node, std::int64_t last_layer) {
    if (node->kind() == c10::prim::ListUnpack) {
      const auto list = lists_.find(node->input());
      if (list == lists_.end()) return;
      for (const auto* output : node->outputs())
        add_output(list->second.node, output, list->second.aliased);
      return;
    }
    if (node->kind().is_prim()) return;

    const auto index = static_cast<std::int64_t>(trace_.nodes.size());
    trace_.nodes.push_back(
        {.op = operator_name(node), .layer = listener_.layer_of(node), .last_layer = last_layer});
    const auto* schema = node->maybeSchema();
    std::vector<std::vector<std::int64_t>> arguments(node->inputs().size());
    for (std::size_t i = 0; i < node->inputs().size(); ++i) {
      const auto* input = node->inputs()[i];
      collect_tensors(input, arguments[i]);
      auto& entry = trace_.nodes[index];
      entry.inputs.insert(entry.inputs.end(), arguments[i].begin(), arguments[i].end());
      const std::string name =
          schema && i < schema->arguments().size() ? schema->arguments()[i].name() : "argument";
      if (const auto text = constant_text(input)) entry.constants.push_back({name, *text});
      if (!schema || i >= schema->arguments().size()) continue;
      const auto* alias = schema->arguments()[i].alias_info();
      if (alias && alias->isWrite()) {
        entry.writes.insert(entry.writes.end(), arguments[i].begin(), arguments[i].end());
      }
    }
    for (std::size_t i = 0; i < node->outputs().size(); ++i) {
      std::vector<std::int64_t> aliased;
      const auto* result =
          schema && i < schema->returns().size() ? schema->returns()[i].alias_info() : nullptr;
      for (std::size_t j = 0; result && j < arguments.size() && j < schema->arguments().size(); ++j) {
        if (may_alias(*result, schema->arguments()[j].alias_info())) {
          aliased.insert(aliased.end(), arguments[j].begin(), arguments[j].end());
        }
      }
      if (is_tensor(node->outputs()[i])) {
        add_output(index, node->outputs()[i], aliased);
      } else {
        lists_[node->outputs()[i]] = {index, std::move(aliased)};
      }
    }
  }

  /// Whether a result may share memory with an argument: one alias set in common, or a list whose elements
  /// do.
  static bool may_alias(const c10::AliasInfo& result, const c10::AliasInfo* argument) {
    if (!argument) return false;
    if (!result.containedTypes().empty() || argument->isWildcardAfter()) return true;
    for (const auto& set : result.beforeSets()) {
      if (argument->beforeSets().contains(set)) return true;
    }
    return false;
  }

  struct List {
    std::int64_t node = 0;
    std::vector<std::int64_t> aliased;
  };

  Trace& trace_;
  const TraceListener& listener_;
  std::unordered_map<const jit::Value*, std::int64_t> ids_;
  std::unordered_map<const jit::Value*, List> lists_;
};

}  // namespace

void refuse_nested(const std::string& who) {
  TORCH_CHECK(!CaptureListener::current() && !jit::tracer::isTracing(), who,
              ": a capture or trace runs on this thread already; they do not nest, call it outside forward");
}

Trace trace_model(torch::nn::Module& model, const ForwardFunction& forward,
                  const std::vector<torch::Tensor>& inputs, const TraceOptions& options) {
  refuse_nested(options.who);
  TORCH_CHECK_VALUE(!inputs.empty(), options.who, ": expected example inputs, got none");
  jit::Stack stack;
  std::vector<std::string> names;
  for (const auto& input : inputs) {
    TORCH_CHECK_VALUE(input.defined(), options.who, ": example input ", stack.size(), " is undefined");
    names.push_back(fmt::format("input{}", stack.size()));
    stack.emplace_back(input.detach().clone());
  }

  Trace trace;
  const auto unit = std::make_shared<jit::CompilationUnit>();
  trace.module = mirror(model, unit);
  TraceListener listener(model, options);
  const auto run = [&](jit::Stack arguments) {
    std::vector<torch::Tensor> tensors;
    for (const auto& argument : arguments)
      tensors.push_back(argument.toTensor());
    const auto outputs = forward(tensors);
    TORCH_CHECK(!outputs.empty(), options.who, ": forward returned no tensor");
    listener.finish();

    std::vector<const jit::Value*> output_values;
    for (const auto& output : outputs) {
      TORCH_CHECK(output.defined(), options.who, ": forward returned an undefined tensor");
      output_values.push_back(jit::tracer::getValueTrace(output));
    }
    // Read here: afterwards the tracer rewrites its graph.
    TraceReader reader(trace, listener);
    reader.read(*jit::tracer::getTracingState()->graph, inputs.size());
    for (const auto* value : output_values)
      trace.outputs.push_back(reader.value_id(value));
    if (outputs.size() == 1) return jit::Stack{outputs[0]};
    std::vector<c10::IValue> elements(outputs.begin(), outputs.end());
    return jit::Stack{c10::ivalue::Tuple::create(std::move(elements))};
  };
  auto state = jit::tracer::trace(
                   std::move(stack), run, [](const torch::Tensor&) { return std::string(); }, /*strict=*/true,
                   /*force_outplace=*/false, &trace.module, names)
                   .first;
  jit::EliminateDeadCode(state->graph);
  jit::EraseShapeInformation(state->graph);
  auto* function =
      unit->create_function(c10::QualifiedName(*trace.module.type()->name(), "forward"), state->graph);
  trace.module.type()->addMethod(function);
  return trace;
}

std::vector<bool> Trace::live_nodes() const {
  std::vector<bool> live_values(values.size());
  std::vector<bool> live(nodes.size());
  const auto mark = [&](const std::vector<std::int64_t>& ids) {
    for (const auto id : ids)
      live_values[id] = true;
  };
  mark(outputs);
  for (const auto& layer : layers) {
    mark(layer.inputs);
    mark({layer.output});
  }
  for (auto i = static_cast<std::int64_t>(nodes.size()) - 1; i >= 0; --i) {
    for (const auto output : nodes[i].outputs)
      live[i] = live[i] || live_values[output];
    if (live[i]) mark(nodes[i].inputs);
  }
  return live;
}

std::string Trace::last_layer_path(const TraceNode& node) const {
  return node.last_layer < 0 ? "" : layers[node.last_layer].path;
}

}  // namespace qat::detail
