#pragma once

#include <stdexcept>

namespace agentspec {

// The binding turns each of these into the class of the same name in agentspec/errors.py.

struct TokenError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct DuplicateRequestError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct UnknownRequestError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Bytes that are not a segment that can be used here.
struct SegmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A broken invariant of a structure: a defect in agentspec, never in what the caller gave.
struct IntegrityError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace agentspec
