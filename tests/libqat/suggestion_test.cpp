#include <qat/suggestion.h>

#include "support/catch.h"

using qat::suggestion;

TEST_CASE("A suggestion names the nearest word and keeps silent when none is near", "[libqat]") {
  const std::vector<std::string> known = {"model", "momentum", "seed"};
  CHECK(suggestion("momentun", known) == " (did you mean 'momentum'?)");
  CHECK(suggestion("modle", known) == " (did you mean 'model'?)");
  CHECK(suggestion("xyzzyx", known).empty());
  CHECK(suggestion("seed", {}).empty());
  CHECK(suggestion("", known).empty());
}
