#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/suffix_automaton.h"
#include "index/token.h"

namespace agentspec {

// Hashes of a text's prefixes. They tell whether a text continues an earlier one.
class TextDigest {
 public:
  static constexpr std::size_t kBlock = 64;

  void append(std::span<const Token> tokens);
  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  // Hashes of the first kBlock, 2 * kBlock, ... tokens.
  [[nodiscard]] const std::vector<std::uint64_t>& blocks() const { return blocks_; }

 private:
  std::vector<std::uint64_t> blocks_;
  std::uint64_t hash_ = 0;
  std::size_t length_ = 0;
};

// The index of a request's text. It can reuse the index of an earlier turn of the same conversation, so the
// text may lie in the index in several pieces:
//
//     turn k      system user answer
//     turn k + 1  system user answer | tool result answer          goes on: only the new tokens are indexed
//     turn k + 1  system user rewritten answer | tool result ...   rewritten: the old text stays in the
//                                                                  index, the new text follows an end
class TextIndex {
 public:
  explicit TextIndex(std::int32_t max_counted_length) : automaton_(max_counted_length) {}

  void reserve(std::size_t num_tokens) { automaton_.reserve(num_tokens); }
  void append(std::span<const Token> tokens);
  // Continues after a common prefix with another text: `beginning` is the prefix. The tokens after it no
  // longer belong to the text, but stay in the index.
  void rewrite(std::span<const Token> beginning);

  [[nodiscard]] const SuffixAutomaton& automaton() const { return automaton_; }
  [[nodiscard]] const TextDigest& digest() const { return digest_; }  // of the text as it was given
  // True if the index has tokens that do not belong to the text.
  [[nodiscard]] bool is_rewritten() const { return pieces_.size() > 1; }
  [[nodiscard]] std::vector<Token> text() const;
  [[nodiscard]] std::size_t bytes() const {
    return sizeof(TextIndex) + automaton_.bytes() + digest_.blocks().capacity() * sizeof(std::uint64_t) +
           pieces_.capacity() * sizeof(Piece);
  }

  // Throws IntegrityError, which names the first invariant that does not hold.
  void check_integrity() const;

 private:
  using Piece = std::pair<std::int32_t, std::int32_t>;

  SuffixAutomaton automaton_;
  TextDigest digest_;
  std::vector<Piece> pieces_ = {{0, 0}};  // half-open ranges of the automaton's text that make up this text
};

// The indexes of finished requests, kept for the next turns of their conversations. Those used last are kept,
// within a budget of bytes. A namespace can take only what was put in under its own name.
class Conversations {
 public:
  struct Entry {
    std::string name;
    std::unique_ptr<TextIndex> index;
    std::size_t bytes;
  };

  explicit Conversations(std::size_t budget_bytes) : budget_bytes_(budget_bytes) {}

  // put(), erase() and clear() return the entries to free, because freeing may take long.
  [[nodiscard]] std::list<Entry> put(std::string_view name, std::unique_ptr<TextIndex> index);
  // Takes out the index that saves the most work for the prompt, or returns nullptr if none saves much. Sets
  // num_known to the number of leading prompt tokens in the index; the caller appends the others.
  [[nodiscard]] std::unique_ptr<TextIndex> take(std::string_view name, std::span<const Token> prompt,
                                                std::size_t& num_known);
  [[nodiscard]] std::list<Entry> erase(std::string_view name);
  [[nodiscard]] std::list<Entry> clear();
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t budget_bytes_;
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace agentspec
