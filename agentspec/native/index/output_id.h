#pragma once

#include <cstdint>
#include <string_view>

namespace agentspec {

// An output's id has the hash of its request id in the upper half and a number chosen by the engine in the
// lower half. So the outputs of a request can be found wherever they are.

// Never 0. This is the 64-bit FNV-1a hash, folded to 32 bits. Stores keep it, so it must stay the same in
// every process and release.
[[nodiscard]] inline std::uint32_t request_hash(std::string_view request_id) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : request_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const auto folded = static_cast<std::uint32_t>(hash ^ (hash >> 32));
  return folded == 0 ? 1 : folded;
}

[[nodiscard]] inline std::uint64_t make_output_id(std::string_view request_id, std::uint32_t number) {
  return std::uint64_t{request_hash(request_id)} << 32 | number;
}

[[nodiscard]] inline std::uint32_t request_hash_of(std::uint64_t output_id) {
  return static_cast<std::uint32_t>(output_id >> 32);
}

}  // namespace agentspec
