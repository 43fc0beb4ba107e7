#include "index/conversations.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "errors.h"

namespace agentspec {
namespace {

// If the prompt is not an exact continuation of an index, the index must save at least this many tokens, and
// at least half of the tokens that it holds.
constexpr std::size_t kMinSpared = 256;

}  // namespace

void TextDigest::append(std::span<const Token> tokens) {
  for (const Token token : tokens) {
    hash_ = (hash_ ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15ULL;
    hash_ ^= hash_ >> 29;
    if (++length_ % kBlock == 0) blocks_.push_back(hash_);
  }
}

void TextIndex::append(std::span<const Token> tokens) {
  automaton_.append(tokens);
  digest_.append(tokens);
  pieces_.back().second = automaton_.num_tokens();
}

void TextIndex::rewrite(std::span<const Token> beginning) {
  automaton_.append(kEnd);
  digest_ = TextDigest();
  digest_.append(beginning);
  auto left = static_cast<std::int32_t>(beginning.size());
  auto piece = pieces_.begin();
  for (; left > piece->second - piece->first; ++piece) left -= piece->second - piece->first;
  piece->second = piece->first + left;
  pieces_.erase(piece + 1, pieces_.end());
  pieces_.emplace_back(automaton_.num_tokens(), automaton_.num_tokens());
}

std::vector<Token> TextIndex::text() const {
  std::vector<Token> result;
  result.reserve(digest_.length());
  const std::vector<Token>& all = automaton_.text();
  for (const auto& [begin, end] : pieces_)
    result.insert(result.end(), all.begin() + begin, all.begin() + end);
  return result;
}

void TextIndex::check_integrity() const {
  automaton_.check_integrity();
  const std::vector<Token> tokens = text();
  TextDigest expected;
  expected.append(tokens);
  if (std::find(tokens.begin(), tokens.end(), kEnd) != tokens.end() ||
      pieces_.back().second != automaton_.num_tokens() || expected.length() != digest_.length() ||
      expected.hash() != digest_.hash() || expected.blocks() != digest_.blocks()) {
    throw IntegrityError("text index: its pieces are not the text that it was given");
  }
}

std::list<Conversations::Entry> Conversations::put(std::string_view name, std::unique_ptr<TextIndex> index) {
  std::list<Entry> made;
  const std::size_t bytes = index->bytes();
  made.push_front({std::string(name), std::move(index), bytes});
  if (bytes > budget_bytes_) return made;
  entries_.splice(entries_.begin(), made);
  bytes_ += bytes;
  std::list<Entry> freed;
  while (bytes_ > budget_bytes_) {
    bytes_ -= entries_.back().bytes;
    freed.splice(freed.begin(), entries_, std::prev(entries_.end()));
  }
  return freed;
}

std::unique_ptr<TextIndex> Conversations::take(std::string_view name, std::span<const Token> prompt,
                                               std::size_t& num_known) {
  num_known = 0;
  if (entries_.empty()) return nullptr;
  // 1. The hashes of the prompt's prefixes that an entry may have.
  std::vector<std::uint64_t> hashes(prompt.size() + 1);
  TextDigest digest;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    digest.append(prompt.subspan(i, 1));
    hashes[i + 1] = digest.hash();
  }
  // 2. The longest text that the prompt continues, or else the text that shares the longest prefix with it.
  auto best = entries_.end();
  bool best_is_exact = false;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->name != name) continue;
    const TextDigest& known = entry->index->digest();
    const std::size_t length = known.length();
    const bool is_exact = length <= prompt.size() && hashes[length] == known.hash();
    std::size_t spared = length;
    if (!is_exact) {
      if (best_is_exact) continue;
      const auto& blocks = known.blocks();
      std::size_t shared = 0;
      while (shared < blocks.size() && (shared + 2) * TextDigest::kBlock <= prompt.size() &&
             blocks[shared] == hashes[(shared + 1) * TextDigest::kBlock]) {
        ++shared;
      }
      spared = shared * TextDigest::kBlock;
      if (spared < kMinSpared || 2 * spared < entry->index->automaton().text().size()) continue;
    }
    if (best != entries_.end() && is_exact == best_is_exact && spared <= num_known) continue;
    best = entry;
    best_is_exact = is_exact;
    num_known = spared;
  }
  if (best == entries_.end()) return nullptr;
  // 3. Make the index end where the prompt continues.
  std::unique_ptr<TextIndex> index = std::move(best->index);
  bytes_ -= best->bytes;
  entries_.erase(best);
  if (!best_is_exact) index->rewrite(prompt.first(num_known));
  return index;
}

std::list<Conversations::Entry> Conversations::erase(std::string_view name) {
  std::list<Entry> freed;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto found = entry++;
    if (found->name != name) continue;
    bytes_ -= found->bytes;
    freed.splice(freed.end(), entries_, found);
  }
  return freed;
}

std::list<Conversations::Entry> Conversations::clear() {
  bytes_ = 0;
  return std::exchange(entries_, {});
}

}  // namespace agentspec
