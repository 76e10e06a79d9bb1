#include "support/command_line.h"

#include "data_files.h"
#include "usage_text.h"

#include "support/catch.h"

using namespace qat::apps;
using namespace qat::apps::testing;
using Catch::Matchers::Contains;

namespace {

TrainCommand train(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "qat-train");
  const auto parsed = parse_train_command(arguments);
  REQUIRE(parsed.command);
  return *parsed.command;
}

std::string train_refusal(const std::vector<std::string>& arguments) {
  return usage_text([&] { train(arguments); });
}

std::filesystem::path write_toml(const TemporaryFolder& folder, const std::string& text) {
  return folder.write("run.toml", Bytes(text.begin(), text.end()));
}

}  // namespace

TEST_CASE("Options of qat-train set the keys of the same name", "[apps]") {
  const auto command = train({"--out", "results", "--weight-bits=4", "--augment", "--set",
                              "learning_rate=0.05", "--set", "batch-size=32"});
  CHECK(command.out == "results");
  RunConfig expected;
  expected.weight_bits = 4;
  expected.augment = true;
  expected.learning_rate = 0.05;
  expected.batch_size = 32;
  CHECK(command.config == expected);
  CHECK(train({"--out", "x"}).config == RunConfig{});
}

TEST_CASE("--resume takes the configuration of the folder, if it holds one", "[apps]") {
  const TemporaryFolder folder;
  const std::string text = "weight_bits = 4\n";
  const auto out = folder.write("config.toml", Bytes(text.begin(), text.end())).parent_path().string();
  const auto resumed = train({"--resume", "--out", out});
  CHECK(resumed.run.resume);
  CHECK(resumed.config.weight_bits == 4);
  CHECK(resumed.run.checkpoint_seconds == 60);
  const auto fresh = train({"--resume=false", "--out", out, "--checkpoint-seconds", "0.5"});
  CHECK_FALSE(fresh.run.resume);
  CHECK(fresh.config.weight_bits == RunConfig{}.weight_bits);
  CHECK(fresh.run.checkpoint_seconds == 0.5);
  CHECK_THAT(train_refusal({"--out", out, "--checkpoint-seconds", "soon"}), Contains("soon"));
}

TEST_CASE("Options win over the file and the file over the defaults", "[apps]") {
  const TemporaryFolder folder;
  const auto file = write_toml(folder, "weight_bits = 4\nseed = 7\n").string();
  const auto config = train({"--weight-bits", "6", "--config", file, "--out", "x"}).config;
  CHECK(config.weight_bits == 6);
  CHECK(config.seed == 7);
  CHECK(config.activation_bits == RunConfig{}.activation_bits);
}

TEST_CASE("case 122: qat-train refuses what it does not understand", "[apps]") {
  CHECK_THAT(train_refusal({"--out", "x", "--wieght-bits", "4"}),
             Contains("--wieght-bits") && Contains("'--weight-bits'"));
  CHECK_THAT(train_refusal({"--out", "x", "--wieght-bits=4"}),
             Contains("--wieght-bits") && Contains("'--weight-bits'"));
  CHECK_THAT(train_refusal({"--out", "x", "-q"}), Contains("-q"));
  CHECK_THAT(train_refusal({"--out", "x", "stray"}), Contains("stray"));
  CHECK_THAT(train_refusal({"--out", "x", "--weight-bits"}), Contains("weight-bits"));
  CHECK_THAT(train_refusal({"--out", "x", "--optimizer", "lion"}),
             Contains("--optimizer lion") && Contains("sgd, adam"));
  for (const auto* bits : {"0", "1.5", "-3", "99"})
    CHECK_THAT(train_refusal({"--out", "x", "--weight-bits", bits}),
               Contains("--weight-bits " + std::string(bits)) && Contains("from 1 to 16"));
  CHECK_THAT(train_refusal({"--out", "x", "--set", "momentun=0.5"}),
             Contains("momentun") && Contains("'momentum'"));
  CHECK_THAT(train_refusal({"--out", "x", "--set", "momentum"}), Contains("key=value"));
  CHECK_THAT(train_refusal({"--set", "seed=1"}), Contains("--out"));
  CHECK_THAT(train_refusal({"--out", "x", "--config", "/no/such.toml"}), Contains("/no/such.toml"));
}

TEST_CASE("case 122: one key with two values is a contradiction", "[apps]") {
  CHECK_THAT(train_refusal({"--out", "x", "--weight-bits", "4", "--weight-bits", "8"}),
             Contains("8") && Contains("contradicts --weight-bits 4"));
  CHECK_THAT(train_refusal({"--out", "x", "--augment", "--set", "augment=false"}),
             Contains("contradicts --augment true"));
  CHECK_THAT(train_refusal({"--out", "x", "--out", "y"}), Contains("--out"));
  CHECK_NOTHROW(train({"--out", "x", "--weight-bits", "4", "--set", "weight_bits=4"}));
}

TEST_CASE("The help of qat-train names every key with its default", "[apps]") {
  const auto parsed = parse_train_command({"qat-train", "--help"});
  CHECK_FALSE(parsed.command);
  for (const auto& setting : settings())
    CHECK_THAT(parsed.text, Contains("--" + setting.option()));
  CHECK_THAT(parsed.text, Contains("(default: fashion-mnist)") && Contains("that of --quantizer)"));
  CHECK_THAT(parsed.text, !Contains("one of ,") && !Contains("(default: )"));
  CHECK_FALSE(parse_train_command({"qat-train", "--version"}).command);
}

TEST_CASE("qat-eval takes one file and options", "[apps]") {
  const auto parsed = parse_eval_command({"qat-eval", "model.qat", "--data", "synthetic", "--json"});
  REQUIRE(parsed.command);
  CHECK(parsed.command->file == "model.qat");
  CHECK(parsed.command->data == "synthetic");
  CHECK_FALSE(parsed.command->data_path);
  CHECK(parsed.command->batch_size == 500);
  CHECK(parsed.command->json);
  CHECK_THAT(usage_text([] { parse_eval_command({"qat-eval"}); }), Contains("FILE"));
  CHECK_THAT(usage_text([] { parse_eval_command({"qat-eval", "a", "b"}); }), Contains("2"));
  CHECK_THAT(usage_text([] { parse_eval_command({"qat-eval", "a", "--jsno"}); }), Contains("'--json'"));
  CHECK_THAT(usage_text([] {
               parse_eval_command({"qat-eval", "a", "--data", "mnist"});
             }),
             Contains("mnist") && Contains("fashion-mnist"));
}
