#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drafting/drafter.h"
#include "drafting/estimator.h"
#include "drafting/plain_drafter.h"
#include "index/conversations.h"
#include "index/global_index.h"
#include "index/suffix_array/suffix_array.h"
#include "index/suffix_automaton.h"
#include "string_hash.h"
#include "tenants.h"
#include "worker.h"

namespace agentspec {

// Mirrors agentspec.EngineConfig, which has validated the values.
struct EngineConfig {
  Token num_token_ids = 0;  // tokens must be in [0, num_token_ids)
  DraftLimits limits;
  bool plain_rule = false;
  std::int32_t max_draft_tokens = 31;
  std::size_t budget_bytes = 0;
  std::size_t conversation_bytes = 0;
  std::size_t prompt_tail = 0;  // number of tokens at the end of a prompt that are kept before its output
  std::size_t max_growing_tokens = 8192;
  std::size_t max_siblings = 0;
  std::size_t num_threads = 1;
  bool background = false;
  std::array<std::uint8_t, 32> tokenizer{};
  std::vector<float> weights;  // Estimator::kNumWeights
  float learning_rate = 0.0F;

  // The identity that a segment must have to be usable by this engine.
  [[nodiscard]] Segment::Identity identity(SegmentKind kind) const {
    return {num_token_ids, tokenizer, kind};
  }
};

struct EngineStats {
  std::size_t open_requests = 0;
  std::size_t request_bytes = 0;
  std::size_t conversation_bytes = 0;
  std::size_t waiting_outputs = 0;  // closed, but not yet in the global index
  std::uint64_t spared_tokens =
      0;  // prompt tokens that needed no indexing, because an earlier turn had indexed them
  std::size_t corpora = 0;
  GlobalIndexStats global;
};

// What a request may bring besides its prompt.
struct OpenOptions {
  std::size_t max_length = static_cast<std::size_t>(-1);  // see Engine::open()
  std::string group;     // the requests of a namespace that name the same group are siblings
  bool is_shown = true;  // siblings may draft from its output while it grows
  // A text that the output may repeat. Only this request drafts from it, and it goes when the request closes.
  std::span<const Token> prediction = {};
};

// What happened to a row of a draft call. The values are those of agentspec.Outcome.
enum class Outcome : std::uint8_t {
  kDrafted = 0,
  kNoRoom = 1,      // no token may be drafted
  kNotIndexed = 2,  // the prompt's index is being built
  kNoOutputs = 3,   // its own text gave nothing, and its namespace has neither outputs nor corpora
  kNoMatch = 4,     // the end of the text did not occur before
  kUnlikely = 5,    // it did, but no continuation is likely enough
  kNoMemory = 6,
  kNotOpen = 7,    // the request is closed, or was never opened
  kOtherText = 8,  // the text's length differs from the one the caller gave
};

// The drafts of a batch of b rows. Row i has the nodes offsets[i] to offsets[i + 1], its root first.
struct DraftBatch {
  std::vector<std::int32_t> offsets;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;  // within the row; -1 for the root
  std::vector<float> estimates;
  std::vector<std::uint8_t> sources;
  std::vector<std::int32_t> match_lens;  // [b], like scores and outcomes
  std::vector<float> scores;
  std::vector<std::uint8_t> outcomes;
};

// The same in memory that the caller owns. It must have room for every draft that the limits allow; `offsets`
// has one more element than there are rows.
struct DraftSpans {
  std::span<std::int32_t> offsets;
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> parents;
  std::span<float> estimates;
  std::span<std::uint8_t> sources;
  std::span<std::int32_t> match_lens;
  std::span<float> scores;
  std::span<std::uint8_t> outcomes;
  std::span<std::int32_t> rooms;  // [b], the most nodes that each row was allowed, its root not counted
};

// Indexes the texts of open requests and the outputs of finished ones, and drafts from both. All methods are
// thread-safe. A call that throws leaves the engine unchanged.
//
// With `background`, two threads of the engine build, extend, seal, merge and free the indexes: one thread
// does short jobs, the other does long ones. Without it, the calling thread does this work.
//
// One mutex guards all state. It is held while a batch is drafted or a slice of a text is indexed. It is held
// for longer only when an output is erased from a growing part, because that part is then indexed again. An
// index that is being built belongs to its builder alone, and sealed segments never change.
class Engine {
  struct Request;

 public:
  static constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);

  explicit Engine(const EngineConfig& config);
  ~Engine();

  // The requests of a batch. They are looked up once and serve all steps of the batch. A request that has
  // been closed since then is skipped.
  class Rows {
   public:
    [[nodiscard]] std::size_t size() const { return requests_.size(); }

   private:
    friend class Engine;
    std::vector<std::shared_ptr<Request>> requests_;  // null if the request was not open at the look-up
  };

  // Opens a request. Its text may grow to `max_length` tokens, prompt included; nothing is drafted beyond
  // that. Its siblings are the open requests of its namespace that name its group or, without a group, have
  // its prompt. It drafts from the outputs of at most max_siblings of them while they grow.
  void open(const std::string& request_id, std::span<const Token> prompt, const std::string& name,
            const OpenOptions& options = {});
  [[nodiscard]] Rows rows(std::span<const std::string_view> request_ids) const;
  // Appends to each row's text the tokens that a forward accepted. `accepted` is [b, width]: the number of
  // tokens, then the tokens. After the forward, row i has ends[i] tokens in the KV cache, of which padding[i]
  // are not in its text (`padding` may be empty). The last accepted token has no KV yet. A row grows only if
  // its text lacks exactly these tokens. The last draft is kept for learn(), and the ends for
  // draft_followed(). A row with a token outside the vocabulary, or with an index that cannot grow, loses its
  // index and gets no more drafts. Returns the number of such rows.
  std::size_t follow(const Rows& rows, std::span<const std::int64_t> accepted, std::size_t width,
                     std::span<const std::int64_t> ends, std::span<const std::int64_t> padding);
  // Learns from what follow() appended. It is a call of its own because the next draft does not need its
  // result.
  void learn(const Rows& rows);
  // Drafts for the rows as draft() below does, with at most `max_tokens` nodes per row, in memory of the
  // caller. A row whose text is not what follow() last reported gets only its root. Writes to `ends`, [b],
  // what was reported; -1 if nothing was. Returns the number of nodes. Throws ConfigError if `out` has no
  // room for the largest drafts that the limits allow.
  std::size_t draft_followed(const Rows& rows, std::span<const std::int64_t> padding, std::int32_t max_tokens,
                             const DraftSpans& out, std::span<std::int64_t> ends);
  // Appends the tokens of an output that the request's text lacks, in one call, so that follow() cannot
  // append some of them meanwhile.
  void complete(const std::string& request_id, std::span<const Token> output);
  void extend(const std::string& request_id, std::span<const Token> tokens);
  // Drafts for a batch. `max_tokens` is empty or gives each row's limit; no limit may be negative. A request
  // whose index is not built yet gets only its root. `batch` is overwritten and its memory is reused.
  void draft(std::span<const std::string_view> request_ids, std::span<const std::int32_t> max_tokens,
             DraftBatch& batch);
  void draft(std::span<const std::string> request_ids, std::span<const std::int32_t> max_tokens,
             DraftBatch& batch) {
    draft(std::vector<std::string_view>(request_ids.begin(), request_ids.end()), max_tokens, batch);
  }
  // Ends the request. With `keep`, the first num_output_tokens tokens of its output go to the global index.
  // Returns the output's id there (output_id.h), or 0 if it is not kept.
  std::uint64_t close(const std::string& request_id, bool keep, std::optional<std::size_t> num_output_tokens);
  // Adds an output of another engine as close() would have. `tokens` holds the last num_prompt_tail tokens of
  // the prompt, then the output; the engine keeps no more of the prompt than it keeps of its own prompts.
  // Returns false if there is no output, if an output with this id is waiting, or if memory is short.
  bool add(const std::string& name, std::uint64_t output_id, std::span<const Token> tokens,
           std::size_t num_prompt_tail, std::int64_t time);

  [[nodiscard]] std::size_t num_tokens(const std::string& request_id) const;
  [[nodiscard]] bool is_open(const std::string& request_id) const;

  // Waits until everything given so far is indexed, and until due sealing and merging is done.
  void flush();
  // Waits until everything given so far can be drafted from. If the global index is crowded, waits
  // as flush() does, so that whoever adds much cannot outrun it. Takes no mutex that a draft takes.
  void wait_indexed();
  // When one of these five calls returns, nothing that it deletes is drafted from, waiting outputs included.
  // Other outputs are drafted from as before.
  void clear();  // all namespaces and their learnt estimates; erase_namespace() does this for one
  bool erase_namespace(const std::string& name);
  bool erase_output(std::uint64_t output_id);
  // Both return the number of deleted outputs: those of a request, or those older than `before`.
  std::size_t erase_request(const std::string& name, std::string_view request_id);
  std::size_t expire(const std::string& name, std::int64_t before);

  // Everything that the namespace has at one moment; see GlobalSnapshot.
  [[nodiscard]] GlobalSnapshot snapshot(const std::string& name) const;
  // Adds copies of segments, given oldest first, before the outputs of a namespace. Adds all or none. Leaves
  // out outputs whose ids are in `known`, and repeated ones. Returns the ids of the outputs that it added.
  std::vector<std::uint64_t> load_segments(const std::string& name,
                                           std::span<const std::span<const std::byte>> blobs,
                                           std::span<const std::uint64_t> known);
  [[nodiscard]] std::vector<NamespaceStats> namespaces() const;

  // Lets the named namespaces draft from a corpus, or all namespaces if `names` is empty.
  void attach_corpus(const std::string& path, std::vector<std::string> names);
  bool detach_corpus(const std::string& path);

  // Runs Drafter::trials() for a request whose next tokens are known.
  void trials(const std::string& request_id, std::span<const Token> truth, std::vector<Drafter::Trial>& rows);
  // The weights of the namespace's estimator.
  [[nodiscard]] std::vector<float> weights(const std::string& name) const;

  [[nodiscard]] EngineStats stats() const;
  void check_integrity() const;

 private:
  // The match of a request's text in one part, kept from draft to draft. Only the tokens appended since then
  // have to be matched. When the part has grown, the match is computed again.
  struct KnownMatch {
    std::uint64_t part_id = 0;
    std::int32_t part_tokens = 0;
    std::size_t text_length = 0;  // number of tokens of the request's text that were matched
    StateMatch state;
    ContextMatch context;
  };

  // The output of an open request, with the end of its prompt before it, as its siblings see it.
  struct Shown {
    explicit Shown(std::int32_t max_counted_length) : automaton(max_counted_length) {}
    std::uint64_t id = 0;
    SuffixAutomaton automaton;
    std::size_t num_tokens = 0;  // of the output, so far
    bool is_waiting = false;     // it is in to_show_
  };

  struct Request {
    std::string name;
    std::shared_ptr<Tenant> tenant;
    std::unique_ptr<TextIndex> index;  // belongs to its builder until is_ready, like the next one
    // The end of the prompt and the text that the output may repeat. Null if the caller gave none.
    std::unique_ptr<SuffixAutomaton> prediction;
    bool is_ready = false;
    bool is_open = true;
    std::size_t num_prompt_tokens = 0;
    std::size_t max_length = kNoLimit;
    Token last_token = 0;
    std::vector<Token> prompt_tail;
    std::vector<Token> output;
    std::string group;
    bool is_shown = true;
    std::uint64_t prompt_hash = 0;
    std::vector<std::weak_ptr<Request>> siblings;  // those that it drafts from
    std::unique_ptr<Shown> shown;                  // null until it is someone's sibling
    std::vector<KnownMatch> matches;  // in global parts and corpora, in the order of the last draft
    std::vector<DraftNode> drafted;   // the last draft, to learn from
    std::vector<DraftNode>
        judged;  // an earlier draft that is still to be learnt from, and the tokens that followed it
    std::vector<Token> judged_by;
    std::vector<PartMatch> global;  // scratch of match_parts(), like the next two
    std::vector<PartMatch> corpora;
    std::vector<KnownMatch> new_matches;
    Draft draft;
    Outcome outcome = Outcome::kDrafted;  // of the last draft
    std::int64_t end = -1;                // number of tokens in the KV cache, as follow() last reported it

    [[nodiscard]] std::size_t length() const { return num_prompt_tokens + output.size(); }
  };
  using RequestPtr = std::shared_ptr<Request>;

  // An output that is on its way to the index.
  struct Waiting {
    std::string name;
    std::int64_t time;
    std::uint64_t serial;  // never used again, so it differs from that of an erased output with the same id
  };

  struct Corpus {
    std::string path;
    std::uint64_t id;
    std::shared_ptr<const Segment> segment;
    std::vector<std::string> names;
  };

  void check_tokens(std::span<const Token> tokens) const;
  void check_not_open(const std::string& request_id) const;
  [[nodiscard]] const RequestPtr& find(std::string_view request_id) const;
  void build(const RequestPtr& request, const std::vector<Token>& prompt);
  void build_prediction(Request& request, std::span<const Token> prompt, std::span<const Token> text) const;
  void retire(const RequestPtr& request, bool keep, std::uint64_t num_erasures);
  void leave(Request& request);
  [[nodiscard]] std::uint64_t expect(const std::string& name, const Output& output);
  bool post_output(const std::string& name, Output&& output, std::uint64_t serial);
  void add_output(const std::string& name, const Output& output, std::uint64_t serial);
  void compact_later();
  void compact();
  // The namespaces that count an erasure, in addition to those in which it finds something.
  enum class Scope { kWhereFound, kNamed, kAllIfEvicted };
  std::size_t erase(const std::string* name, const GlobalIndex::IsErased& is_erased, Scope scope);
  void take_rewritten(const std::string* name, std::vector<RequestPtr>& found);
  void build_anew(const std::vector<RequestPtr>& requests);
  std::shared_ptr<const Segment> take_corpus(const std::string& path);
  void meet_siblings(const RequestPtr& request);
  [[nodiscard]] static bool are_siblings(const Request& a, const Request& b);
  void add_sibling(Request& request, const RequestPtr& other);
  void show_later(const RequestPtr& request);
  bool show(Request& request, std::size_t max_tokens);
  void show_all();
  static void check_shown(const Request& request);
  bool match_siblings(Request& request, std::size_t& known) const;
  bool match_parts(Request& request) const;
  void match_part(Request& request, const IndexPart& part, std::uint64_t id, std::size_t& known,
                  std::vector<PartMatch>& matches, std::int32_t max_pattern) const;
  [[nodiscard]] DraftSources sources(const Request& request) const;
  void learn(Request& request, std::span<const DraftNode> drafted, std::span<const Token> tokens);
  void learn_judged(Request& request);
  bool grow(Request& request, std::span<const std::int64_t> tokens);
  std::size_t draft_into(const DraftSpans& out);
  void find_rows(std::span<const std::string_view> request_ids, std::span<const std::int32_t> max_tokens);
  void draft_rows(DraftBatch& batch);
  void draft_row(std::size_t thread, Request& request, std::int32_t max_nodes);

  const EngineConfig config_;
  mutable std::mutex mutex_;  // guards all members down to waiting_
  std::unordered_map<std::string, RequestPtr, StringHash, std::equal_to<>> requests_;
  Tenants tenants_;
  GlobalIndex global_;
  std::vector<Corpus> corpora_;
  std::vector<Drafter> drafters_;  // one per thread, like the plain ones
  std::vector<PlainDrafter> plain_drafters_;
  std::uint32_t next_output_;  // starts at a random value, so that ids of different engines differ
  std::uint64_t next_corpus_;
  std::uint64_t next_shown_;
  std::uint64_t spared_tokens_ = 0;
  // By output id. An erased output is removed from the map, and is then not added, or not added any further.
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  std::atomic<bool> is_crowded_ = false;  // of the global index; may be read without the mutex
  std::uint64_t next_waiting_ = 1;
  std::vector<RequestPtr> rows_;  // scratch of draft(), like the next four
  std::vector<std::int32_t> limits_;
  std::vector<const Request*> sorted_;
  DraftBatch batch_;
  std::vector<RequestPtr> to_show_;  // requests whose siblings do not see all of their output yet
  bool is_showing_ = false;          // a job works on them, or is about to

  mutable std::mutex conversations_mutex_;  // when both are held, it is taken before mutex_
  Conversations conversations_;
  std::mutex adding_mutex_;      // held while an output is added in slices
  std::mutex compacting_mutex_;  // held while parts are merged
  RowPool pool_;
  // These are the last members, so that their threads end before the data they work on is destroyed.
  Worker slow_worker_;
  Worker quick_worker_;
};

}  // namespace agentspec
