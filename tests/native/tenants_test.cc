// Which tenants learn, which are forgotten, and which stay only while someone holds them.

#include "tenants.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "index/output_id.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

const std::vector<float> kInitial(Estimator::kNumWeights, 0.25F);

// Learns something that distinguishes the tenant from one that has not learnt.
void learn(Tenants& tenants, Tenant& tenant) {
  Features features;
  tenants.learner(tenant).observe(features, true);
}

bool has_learnt(const Tenants& tenants, const std::string& name) {
  return tenants.estimator(name).weights()[0] != kInitial[0];
}

void test_each_learns_for_itself() {
  Tenants tenants(kInitial, 0.1F);
  std::shared_ptr<Tenant> a = tenants.enter("a");
  const std::shared_ptr<Tenant> b = tenants.enter("b");
  CHECK(tenants.enter("a") == a);
  learn(tenants, *a);
  CHECK(has_learnt(tenants, "a"));
  CHECK(!has_learnt(tenants, "b"));
  CHECK(&tenants.estimator(b.get()) == &tenants.estimator("never seen"));
  CHECK(&tenants.estimator(a.get()) == &tenants.estimator("a"));
  // What was learnt outlives the requests.
  tenants.leave(std::move(a));
  CHECK(has_learnt(tenants, "a"));
  tenants.forget("a");
  CHECK(!has_learnt(tenants, "a"));
  CHECK(tenants.num_learning() == 0);
}

void test_the_one_that_has_not_learnt_for_the_longest_time_is_replaced() {
  Tenants tenants(kInitial, 0.1F);
  const auto name_of = [](std::size_t number) { return std::to_string(number); };
  for (std::size_t number = 0; number < Tenants::kMaxLearning; ++number) {
    std::shared_ptr<Tenant> tenant = tenants.enter(name_of(number));
    learn(tenants, *tenant);
    tenants.leave(std::move(tenant));
  }
  learn(tenants, *tenants.enter("0"));
  learn(tenants, *tenants.enter("one more"));
  CHECK(tenants.num_learning() == Tenants::kMaxLearning);
  CHECK(has_learnt(tenants, "0"));
  CHECK(!has_learnt(tenants, "1"));
  CHECK(has_learnt(tenants, "2"));
  CHECK(has_learnt(tenants, "one more"));
  tenants.forget_all();
  CHECK(tenants.num_learning() == 0);
  CHECK(!has_learnt(tenants, "one more"));
}

void test_erasures_are_counted_for_those_who_are_there() {
  Tenants tenants(kInitial, 0.1F);
  std::shared_ptr<Tenant> a = tenants.enter("a");
  const std::shared_ptr<Tenant> b = tenants.enter("b");
  tenants.count_erasure("a");
  tenants.count_erasure("nobody");
  CHECK(a->num_erasures == 1 && b->num_erasures == 0);
  tenants.count_erasure_everywhere();
  CHECK(a->num_erasures == 2 && b->num_erasures == 1);
  // Two requests hold the tenant: it stays when one of them leaves.
  std::shared_ptr<Tenant> other = tenants.enter("a");
  tenants.leave(std::move(other));
  CHECK(tenants.enter("a") == a);
  tenants.leave(std::move(a));
  CHECK(tenants.enter("a")->num_erasures == 0);
}

// Stores keep ids, so the hash must never change.
void test_request_hashes_stay_as_they_are() {
  CHECK(request_hash("") == (0xcbf29ce4U ^ 0x84222325U));
  CHECK(request_hash("a") == (0xaf63dc4cU ^ 0x8601ec8cU));
  CHECK(request_hash("foobar") == (0x85944171U ^ 0xf73967e8U));
  CHECK(request_hash_of(make_output_id("foobar", 0)) == request_hash("foobar"));
  CHECK(make_output_id("foobar", UINT32_MAX) - make_output_id("foobar", 0) == UINT32_MAX);
}

}  // namespace

int main() {
  return run({test_each_learns_for_itself, test_the_one_that_has_not_learnt_for_the_longest_time_is_replaced,
              test_erasures_are_counted_for_those_who_are_there, test_request_hashes_stay_as_they_are});
}
