#include "support/run_config.h"

#include "usage_text.h"
#include <qat/schedulers/qat_config.h>

#include <cstdint>
#include <map>
#include <string>

#include "support/catch.h"
#include "support/models.h"
#include "support/quantization.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

RunConfig unusual_config() {
  RunConfig config;
  config.data = "cifar10";
  config.data_path = "a \"folder\" with \\ and 'quotes' # and more";
  config.limit = 5000;
  config.batch_size = 100;
  config.augment = true;
  config.model = "mobilenet";
  config.preset = "tensorrt";
  config.quantizer = "lsq";
  config.weight_quantizer = "fp_d_xmax";
  config.activation_quantizer = "pow2_xmin_xmax";
  config.weight_bits = 4;
  config.activation_bits = 5;
  config.input_bits = 6;
  config.layer_weight_bits = "conv=4,block.fc=16";
  config.residual_bits = 9;
  config.scheduler =
      "recorder_decay = 0.5\nskip_layers = [ 'head.*' ]\n\n[layer_activation_bits]\n'conv*' = 4";
  config.bn_folding = "off";
  config.weight_budget_kb = 12.5;
  config.weight_start = "mse";
  config.activation_budget_kb = 3;
  config.activation_budget = "largest";
  config.budget_penalty = 0.25;
  config.init = "a folder/float.qat";
  config.float_epochs = 0;
  config.record_batches = 7;
  config.qat_epochs = 11;
  config.optimizer = "adam";
  config.learning_rate = 0.1 + 0.2;  // needs all its digits
  config.qat_learning_rate = 0.003;
  config.quantizer_rate = 0.5;
  config.momentum = 1e-7;
  config.weight_decay = 0;
  config.schedule = "step";
  config.seed = 1234567890123;
  config.threads = 3;
  config.device = "cuda";
  return config;
}

RunConfig from_toml(const std::string& text) {
  RunConfig config;
  apply_toml(config, text, "run.toml");
  return config;
}

}  // namespace

TEST_CASE("Every key of a configuration survives the way through its file", "[apps]") {
  const auto config = unusual_config();
  const RunConfig defaults;
  for (const auto& setting : settings()) {
    INFO(setting.key);
    CHECK(setting.text(config) != setting.text(defaults));  // or this test would not notice a lost key
  }
  CHECK(from_toml(config.to_toml()) == config);
  CHECK(from_toml(defaults.to_toml()) == defaults);
}

TEST_CASE("The default configuration is valid", "[apps]") {
  CHECK_NOTHROW(RunConfig{}.validate());
}

TEST_CASE("A file sets the keys that it names and leaves the others", "[apps]") {
  const auto config = from_toml("weight_bits = 4\nmodel = 'lenet'\nlearning_rate = 1\n");
  RunConfig expected;
  expected.weight_bits = 4;
  expected.model = "lenet";
  expected.learning_rate = 1.0;
  CHECK(config == expected);
  CHECK(from_toml("") == RunConfig{});
}

TEST_CASE("A file with a fault is refused with its line", "[apps]") {
  const auto text = [](const std::string& toml) { return usage_text([&] { from_toml(toml); }); };
  CHECK_THAT(text("seed = 1\nweight_bitz = 8\n"),
             Contains("run.toml:2") && Contains("weight_bitz") && Contains("weight_bits"));
  CHECK_THAT(text("weight_bits = 1.5"),
             Contains("run.toml:1") && Contains("1.5") && Contains("from 1 to 16"));
  CHECK_THAT(text("weight_bits = [8]"), Contains("weight_bits") && Contains("list"));
  CHECK_THAT(text("[weight_bits]\nx = 1"), Contains("weight_bits") && Contains("table"));
  CHECK_THAT(text("augment = 1"), Contains("augment") && Contains("true or false"));
  CHECK_THAT(text("seed = 1\nmodel = \n"), Contains("run.toml:2"));
  CHECK_THAT(usage_text([] {
               RunConfig config;
               apply_toml_file(config, "/no/such/file.toml");
             }),
             Contains("/no/such/file.toml"));
}

TEST_CASE("case 122: values that are not allowed are refused with the allowed ones", "[apps]") {
  struct Wrong {
    std::string key;
    std::string value;
    std::string allowed;
  };
  const auto wrong =
      GENERATE(values<Wrong>({{"weight_bits", "0", "from 1 to 16"},
                              {"weight_bits", "1.5", "from 1 to 16"},
                              {"activation_bits", "-3", "from 2 to 16"},
                              {"activation_bits", "99", "from 2 to 16"},
                              {"weight_bits", "8 bits", "from 1 to 16"},
                              {"weight_bits", "", "from 1 to 16"},
                              {"seed", "99999999999999999999", "from 0 up"},
                              {"record_batches", "0", "from 1 to 1000000"},
                              {"learning_rate", "nan", "from 0 up"},
                              {"learning_rate", "inf", "from 0 up"},
                              {"learning_rate", "-0.1", "from 0 up"},
                              {"momentum", "1", "below 1"},
                              {"optimizer", "lion", "sgd, adam"},
                              {"quantizer", "lsqq", "lsq_plus"},
                              {"quantizer", "pact", "use --activation-quantizer pact"},
                              {"quantizer", "dorefa", "use --weight-quantizer dorefa"},
                              {"quantizer", "binary", "--weight-quantizer binary --weight-bits 1"},
                              {"quantizer", "", "affine, lsq"},
                              {"weight_quantizer", "pact", "use --activation-quantizer pact"},
                              {"weight_quantizer", "lsqq", "one of affine, lsq"},
                              {"activation_quantizer", "dorefa", "use --weight-quantizer dorefa"},
                              {"input_bits", "0", "from 2 to 16"},
                              {"input_bits", "17", "from 2 to 16"},
                              {"weight_budget_kb", "-1", "from 0 up"},
                              {"weight_budget_kb", "nan", "from 0 up"},
                              {"weight_budget_kb", "inf", "from 0 up"},
                              {"weight_budget_kb", "12 kB", "from 0 up"},
                              {"activation_budget_kb", "-0.5", "from 0 up"},
                              {"activation_budget", "mean", "sum, largest"},
                              {"budget_penalty", "-1", "from 0 up"},
                              {"qat_learning_rate", "fast", "from 0 up"},
                              {"quantizer_rate", "-1", "from 0 up"},
                              {"model", "resnet9", "resnet8"},
                              {"augment", "yes", "true or false"}}));
  RunConfig config;
  const auto text =
      usage_text([&] { assign_setting(config, *find_setting(wrong.key), wrong.value, "--" + wrong.key); });
  CHECK_THAT(text, Contains(wrong.key) && Contains(wrong.value) && Contains(wrong.allowed));
  CHECK(config == RunConfig{});
}

TEST_CASE("validate checks values that were assigned in code", "[apps]") {
  RunConfig config;
  config.weight_bits = 99;
  CHECK_THAT(usage_text([&] { config.validate(); }),
             Contains("weight_bits") && Contains("99") && Contains("from 1 to 16"));
}

TEST_CASE("case 122: values that contradict each other are refused with both names", "[apps]") {
  const auto text = [](const std::string& toml) { return usage_text([&] { from_toml(toml).validate(); }); };
  CHECK_THAT(text("data = 'synthetic'\ndata_path = '/x'"),
             Contains("--data synthetic") && Contains("--data-path /x"));
  CHECK_THAT(text("data = 'cifar10'"), Contains("--data cifar10") && Contains("--data-path"));
  CHECK_THAT(text("limit = 10\nbatch_size = 11"), Contains("--limit 10") && Contains("--batch-size 11"));
  CHECK_NOTHROW(from_toml("limit = 11\nbatch_size = 11").validate());
  CHECK_THAT(text("float_epochs = 0\nqat_epochs = 0"),
             Contains("--float-epochs 0") && Contains("--qat-epochs 0"));
}

TEST_CASE("case 88: budgets need a family whose width learns, on the side that they limit", "[apps]") {
  const auto text = [](const std::string& toml) { return usage_text([&] { from_toml(toml).validate(); }); };
  CHECK_THAT(text("weight_budget_kb = 12.5"),
             Contains("--weight-budget-kb 12.5") && Contains("affine") && Contains("fp_d_xmax"));
  CHECK_THAT(text("quantizer = 'fp_d_xmax'\nweight_quantizer = 'lsq'\nweight_budget_kb = 1"),
             Contains("--weight-budget-kb") && Contains("weight quantizer lsq"));
  CHECK_THAT(text("weight_quantizer = 'fp_d_xmax'\nactivation_budget_kb = 1"),
             Contains("--activation-budget-kb 1") && Contains("activation quantizer affine"));
  CHECK_NOTHROW(
      from_toml("quantizer = 'fp_d_xmax'\nweight_budget_kb = 1\nactivation_budget_kb = 1").validate());
  CHECK_NOTHROW(from_toml("weight_quantizer = 'pow2_xmin_xmax'\nweight_budget_kb = 1").validate());
  CHECK_NOTHROW(from_toml("activation_quantizer = 'fp_n_m'\nactivation_budget_kb = 1").validate());
}

TEST_CASE("case 88: a width that the weights' family cannot have is refused with both options", "[apps]") {
  const auto text = [](const std::string& toml) { return usage_text([&] { from_toml(toml).validate(); }); };
  CHECK_THAT(text("weight_bits = 1"), Contains("--weight-bits 1") && Contains("affine"));
  CHECK_THAT(text("weight_quantizer = 'binary'\nweight_bits = 8"),
             Contains("--weight-bits 8") && Contains("binary"));
  CHECK_THAT(text("weight_quantizer = 'ternary'\nweight_bits = 8"),
             Contains("--weight-bits 8") && Contains("ternary"));
  CHECK_THAT(text("weight_quantizer = 'dorefa'\nlayer_weight_bits = 'fc1=9'"),
             Contains("--layer-weight-bits fc1=9") && Contains("dorefa") && Contains("2 to 8"));
  CHECK_NOTHROW(from_toml("weight_quantizer = 'binary'\nweight_bits = 1").validate());
  CHECK_NOTHROW(from_toml("weight_quantizer = 'ternary'\nweight_bits = 2").validate());
}

TEST_CASE("Options that would change nothing are refused", "[apps]") {
  const auto text = [](const std::string& toml) { return usage_text([&] { from_toml(toml).validate(); }); };
  CHECK_THAT(text("activation_budget = 'largest'"), Contains("--activation-budget largest"));
  CHECK_THAT(text("quantizer_rate = 2"), Contains("--quantizer-rate 2") && Contains("affine"));
  CHECK_NOTHROW(from_toml("quantizer_rate = 2\nactivation_quantizer = 'pact'").validate());
}

TEST_CASE("Widths of layers are a list of paths and bits", "[apps]") {
  const auto parsed = [](const std::string& list) {
    RunConfig config;
    config.layer_weight_bits = list;
    return config.weight_bits_by_layer();
  };
  using Widths = std::map<std::string, std::int64_t>;
  CHECK(parsed("").empty());
  CHECK(parsed("conv=8") == Widths{{"conv", 8}});
  CHECK(parsed("block1.conv1=2,fc=16") == Widths{{"block1.conv1", 2}, {"fc", 16}});
  for (const std::string wrong :
       {"conv", "=4", "conv=", "conv=1", "conv=17", "conv=-3", "conv=4.5", "conv=4 ", ",", "conv=4,",
        "conv=4,,fc=8", "conv=4;fc=8", "conv=4,fc=8,conv=4"}) {
    INFO(wrong);
    CHECK_THAT(usage_text([&] { parsed(wrong); }),
               Contains("--layer-weight-bits " + wrong) && Contains("conv=8,fc=8"));
    RunConfig config;
    config.layer_weight_bits = wrong;
    CHECK_THAT(usage_text([&] { config.validate(); }), Contains("--layer-weight-bits"));
  }
  CHECK_THAT(usage_text([&] { parsed("conv=4,"); }), Contains("got ''"));
  CHECK_THAT(usage_text([&] { parsed("conv=4,fc=8,conv=5"); }), Contains("conv again as conv=5"));
}

TEST_CASE("Further fields of QATConfig come from a table, in a file or as an option", "[apps]") {
  const auto config = from_toml(
      "model = 'cnn'\n[scheduler]\nskip_layers = ['conv1']\nrecorder_decay = 0.5\n"
      "layer_activation_bits = {'relu*' = 4}\n");
  const auto made = scheduler_config(config);
  CHECK(made.skip_layers == std::vector<std::string>{"conv1"});
  CHECK(made.recorder_decay == 0.5);
  CHECK(made.layer_activation_bits == std::map<std::string, std::int64_t>{{"relu*", 4}});
  CHECK(made.channel_wise);  // as the preset has it
  RunConfig same;
  same.model = "cnn";
  assign_setting(same, *find_setting("scheduler"),
                 "layer_activation_bits.'relu*' = 4\nrecorder_decay = 0.5\nskip_layers = ['conv1']",
                 "--scheduler");
  CHECK(scheduler_config(same) == made);
  CHECK(from_toml(config.to_toml()) == config);
  CHECK(from_toml(same.to_toml()) == same);

  const auto refused = [](const std::string& table) {
    return usage_text([&] { from_toml("[scheduler]\n" + table).validate(); });
  };
  CHECK_THAT(refused("weight_bits = 4"), Contains("weight_bits") && Contains("--weight-bits"));
  CHECK_THAT(refused("learning_rate_scale = 0.5"),
             Contains("learning_rate_scale") && Contains("run decides"));
  CHECK_THAT(refused("skip_layer = ['a']"), Contains("skip_layer") && Contains("did you mean 'skip_layers'"));
  CHECK_THAT(refused("recorder_decay = 'much'"), Contains("recorder_decay") && Contains("much"));
  CHECK_THAT(refused("zero_point = true"), Contains("zero_point") && Contains("auto"));
  CHECK_THAT(usage_text([] {
               RunConfig broken;
               assign_setting(broken, *find_setting("scheduler"), "skip_layers = [", "--scheduler");
             }),
             Contains("--scheduler") && Contains("TOML table"));
}

TEST_CASE("The names of models and presets are those that the library knows", "[apps]") {
  RunConfig config;
  for (const auto& name : model_names())
    CHECK(find_setting("model")->assign(config, name));
  for (const auto* name : {"integer_only", "tensorrt", "default"}) {
    CHECK(find_setting("preset")->assign(config, name));
    CHECK_NOTHROW(qat::preset_config(name));
  }
}
