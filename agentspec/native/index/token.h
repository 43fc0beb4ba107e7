#pragma once

#include <cstdint>

namespace agentspec {

using Token = std::int32_t;

// Ends each text in an index of several texts. No draft contains it.
inline constexpr Token kEnd = -1;

}  // namespace agentspec
