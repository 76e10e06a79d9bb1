#include <qat/version.h>

namespace qat {

const char* version() {
  return QAT_VERSION_TEXT;
}

}  // namespace qat
