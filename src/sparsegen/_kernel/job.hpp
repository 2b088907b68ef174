// What the front ends ask of the kernel: rows of one storage type, cut out of an array of shape (outer, K, inner).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace sparsegen {

enum class Storage : int { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 3 };

// Entry k of row (o, i) stands at o * outer + k * entry + i * inner, counted in entries.
struct Strides {
  int64_t outer, entry, inner;
};

// Bytes of all arrays of a call from which results are written past the caches: beyond a core's share of them.
inline constexpr int64_t kStreamFrom = 12 << 20;
// Is that worth it on this processor? Where it is not, each line of a long row is asked for before it is written, and the caches take
// it: docs/decisions/0027.
inline bool past_caches = true;
// The same from which the gradients of short rows ask for memory in advance: less is near enough. Where asking costs next to
// nothing, as in vjp_held(), what is in the second cache.
inline constexpr int64_t kAskFrom = 4 << 20, kAskHeldFrom = 1 << 20;
// Does the processor foresee what is read next where a row is gone through several times before the next one begins? Where it does
// not, the first pass over a row asks for what stands further on, in every array: docs/decisions/0028.
inline bool foresees = true;

// Bytes of scores from which their squares keep the support of rows as bits: less is in the caches on the way back. And of such
// rows: from which share of the sum as a radius w.p is found without p, and how long they may be if the radius is given.
inline constexpr int64_t kWordsFrom = 16 << 10, kWordsBelow = 1024;
inline constexpr double kWordsFromShare = 0.5;
inline int64_t words_of(int64_t K) { return (K + 31) / 32; }  // of a row of K entries

// Longest row of which sixteen fit the first cache beside what is made of them. Shares of the sums of longer ones are worked alone.
inline constexpr int64_t kBesideLimit = 256;

struct Job {
  Storage storage;
  int64_t outer, K, inner;  // rows are numbered o * inner + i
  const double* radius;     // one a row, or one for all
  bool radius_per_row;
  int threads;

  int64_t rows() const { return outer * inner; }
  int64_t bytes() const {  // of one array
    return rows() * K * (storage == Storage::float64 ? 8 : storage == Storage::float32 ? 4 : 2);
  }
  double radius_of(int64_t row) const { return radius[radius_per_row ? row : 0]; }
  // Is the result of a call that goes through so many arrays written past the caches?
  bool written_past(int arrays) const { return past_caches && arrays * bytes() >= kStreamFrom; }
};

// Below this many entries a second thread costs more than it saves; a chunk is about that large.
inline constexpr int64_t kChunkEntries = 16384;

// How many rows a thread takes at a time: a chunk at least, and no more turns than four a thread, since each row asks for the
// one after it in advance; of short ones whole groups of 16, so that lanes are full.
inline int64_t rows_a_turn(const Job& job) {
  const int64_t rows = std::max({int64_t(1), kChunkEntries / job.K, job.rows() / (4 * job.threads)});
  return rows < 16 ? rows : (rows + 15) / 16 * 16;
}

// How `radius` is meant: as it is, or as the q of a radius made of each row's mean: (h + q) / (1/n + q) over its n entries
// that may be chosen, with h the mean (cone) or its size (hourglass).
// Of a MapJob it may also be the share of the sum of the points that is the radius (total).
enum class Rule : int { given = 0, cone = 1, hourglass = 2, total = 3 };

// What is made of the scores before they are projected: see transform.hpp.
enum class Transform : int { lin = 0, exp = 1, sq = 2, log = 3 };

// The place of `mask_row` that says: the first mask is that of all rows.
inline constexpr int64_t kOneMask[1] = {0};

struct ProjectJob : Job {
  const void* x;
  Strides xs;
  void* p;
  Strides ps;
  const uint8_t* mask;       // nonzero: may be chosen; null: every entry
  const int64_t* mask_row;   // offset of each row's mask, or kOneMask; null: row * K
  int64_t* support;          // this and all below may be null
  double* threshold;
  Rule rule = Rule::given;
  double *radius_out = nullptr, *mean_out = nullptr, *count_out = nullptr;  // what the rule found
  uint32_t* words = nullptr;            // the support of each row as bits: see support.hpp
  std::atomic<bool>* broken = nullptr;  // beside `words` of a projection: set if a row is NaN
  std::atomic<bool>* outside = nullptr;  // set if a row is outside the domain; it is NaN
};

struct VjpJob : Job {
  const void *p, *v;
  void* grad_x;
  Strides strides;      // of all three
  double* grad_radius;  // may be null
  const uint32_t* words = nullptr;  // of a projection in which no row was NaN: p is not read then. Not for grad_radius
};

// A map of scores that are not projected as they are: transformed, onto a share of their sum, or with a power (entmax).
struct MapJob : ProjectJob {
  Transform transform = Transform::lin;
  bool power = false;              // entmax: `second` is alpha
  const double* second = nullptr;  // temperature or alpha, one per row or one for all
  bool second_per_row = false;

  double second_of(int64_t row) const { return second[second_per_row ? row : 0]; }
};

// Is p, on the way back, read for the support alone, so that words stand for it? Of squares w.p is found of the scores if the radius is so
// large a share of their sum that no digits are lost; onto a given radius it is not wanted, and longer rows go another way.
inline bool words_suffice(Transform transform, Rule rule, bool power, double radius, int64_t K) {
  if (transform != Transform::sq || power) return false;
  return rule == Rule::total ? radius >= kWordsFromShare : K < kWordsBelow;
}

// Or do they tell where nothing need be read? Of long rows of which few entries may matter: exponentials, logarithms and squares onto a
// given radius; linear ones onto a radius of their mean, and entmax with alpha = 1.5. From where the way back gains more than words cost on
// the way there.
inline constexpr int64_t kSpareGivenFrom = 2048, kSpareFrom = 8192;
inline bool words_spare(Transform transform, Rule rule, bool power, double second, int64_t K) {
  if (!power && rule == Rule::given) return transform != Transform::lin && K >= kSpareGivenFrom;
  if (K < kSpareFrom) return false;
  return power ? second == 1.5 : transform == Transform::lin && (rule == Rule::cone || rule == Rule::hourglass);
}

// Its way back. `radius` and `second` are the controls as the map got them; `found` and `base` what it found for each row.
struct MapVjpJob : Job {
  const void *z, *p, *v;
  void* grad;
  Strides zs, strides;  // of z; of all others
  const uint8_t* mask;
  const int64_t* mask_row;
  Rule rule;
  Transform transform;
  bool power;
  const double* second;
  bool second_per_row;
  const double *found, *base, *count;        // each may be null: the radius is then as it is given
  const uint32_t* words = nullptr;           // if they suffice or spare: of rows, and one more; `found` is NaN then if a row is
  double *grad_radius, *grad_second;         // of each row's controls; may be null

  double second_of(int64_t row) const { return second[second_per_row ? row : 0]; }
};

// Mean and number of the entries of each row that may be chosen.
struct MeanJob : Job {
  const void* x;
  Strides xs;
  const uint8_t* mask;
  const int64_t* mask_row;
  double *mean, *count;
};

// The hinge losses' F(z, radius) of hinge.hpp, rows contiguous, labels as CSR.
struct HingeJob : Job {
  const void* z;
  const uint8_t* mask;
  const int64_t* mask_row;
  const int64_t *indptr, *indices;
  double smoothing;
  double *value, *slope;  // F and dF/dradius
  void* grad;             // dF/dz, float64 for float64 scores and float32 for others; may be null
};

struct DualEntry {
  int32_t at;
  double value;
};

// A linear model with the huber loss in its dual: see dual.hpp. Features are CSR, or (x_indptr null) dense rows.
struct DualJob {
  int64_t K, features;  // without the intercept, the weight of a last feature that is `constant`; 0: there is none
  double constant;
  const int64_t* x_indptr;
  const int32_t* x_index;
  const double* x;
  const double *share, *square;  // of each row: its weight, and the squared length of its features
  const int64_t *y_indptr, *y_index;
  const double* eta;
  double alpha, radius;
  double* W;  // a row for each feature beside CSR features, a row for each class beside dense ones
  std::vector<DualEntry>* mu;
  const int64_t* order;
  double *value, *gap;  // of each row
  bool restart;

  int64_t width() const { return features + (constant != 0); }
};

// A matrix for each head: row i of head h starts at[h] + i * row entries into `data`; the entries of a row are contiguous.
struct Heads {
  const void* data;
  const int64_t* at;
  int64_t row;
};

// What becomes of a row of scores: projected onto a radius; a share of e^(x / temperature) projected, the radius that share of
// their sum; or entmax with alpha = 1.5. Shares have no way back here: their gradient is dense.
enum class Weigh : int { project = 0, shares = 1, root = 2 };

// What both directions of attention share. `group` query heads in turn share one head of keys and values.
struct AttentionShape {
  Storage storage;  // of q, k, v and the output; halves are computed, and all else is given, in float32
  int64_t heads, group, queries, keys, width, value_width;
  Heads q, k, v;
  double scale;
  Weigh weigh;
  const double* radius;  // one a row, or one for all; rows are numbered head * queries + query
  bool radius_per_row;
  int threads;

  double radius_of(int64_t row) const { return radius[radius_per_row ? row : 0]; }
};

// The support of the rows of one block, in order. A weight that dropout took carries a minus sign.
struct Piece {
  std::vector<int32_t> index;
  std::vector<float> narrow;
  std::vector<double> wide;

  std::vector<float>& values(float) { return narrow; }
  std::vector<double>& values(double) { return wide; }
};

// Rows are worked in blocks of `block` queries of one head; where a head of keys meets `kFewRows` rows or less, all of them.
inline constexpr int64_t kFewRows = 4;

struct AttentionJob : AttentionShape {
  bool causal;
  Rule rule;
  const uint8_t* mask;     // nonzero: may attend; null: all
  const void* bias;        // added to the scores; null: nothing
  const int64_t* mask_at;  // of mask or bias: where each head starts, and the steps from query to query and key to key
  int64_t mask_row, mask_key;
  double dropout;
  double temperature;  // of shares
  uint64_t seed;
  int64_t block;
  void* out;                                  // null: only the support is asked for
  double *radius_out, *mean_out, *count_out;  // what the rule found; may be null
  int64_t* sizes;                             // of each row's support; this and `pieces`, one a block, may be null
  Piece* pieces;

  bool pairs;  // may bfloat16 be multiplied in pairs?

  bool few() const { return group * queries <= kFewRows; }
  int64_t block_rows() const { return few() ? group * queries : block; }
  int64_t blocks_a_head() const { return few() ? 1 : (queries + block - 1) / block; }
  int64_t blocks() const { return few() ? heads / group : heads * blocks_a_head(); }
  int64_t first_row(int64_t at) const {
    return few() ? at * group * queries : at / blocks_a_head() * queries + at % blocks_a_head() * block;
  }
  int64_t rows_in(int64_t at) const { return few() ? group * queries : std::min(block, queries - at % blocks_a_head() * block); }
};

struct AttentionVjpJob : AttentionShape {
  double keep;  // what dropout multiplied the weights it left by
  const int64_t* indptr;
  const int32_t* index;
  const void *value, *out_grad, *value_grad;  // the last: of the weights themselves; may be null
  void* slopes;                               // of the scores in the support: from the rows' pass to the keys'
  void *q_grad, *k_grad, *v_grad;             // contiguous
  double* radius_grad;                        // may be null
  int64_t ranges;                             // parts the keys of a head are cut into
};

struct Engine {
  const char* name;
  void (*project)(const ProjectJob&, int64_t begin, int64_t end);
  void (*vjp)(const VjpJob&, int64_t begin, int64_t end);
  void (*map)(const MapJob&, int64_t begin, int64_t end);
  void (*map_vjp)(const MapVjpJob&, int64_t begin, int64_t end);
  void (*means)(const MeanJob&, int64_t begin, int64_t end);
  void (*hinge)(const HingeJob&, int64_t begin, int64_t end);
  double (*dual_pass)(const DualJob&, int64_t rows);
  void (*dual_values)(const DualJob&, int64_t begin, int64_t end);
  void (*dual_weights)(const DualJob&, int64_t rows);
  void (*attention)(const AttentionJob&, int64_t begin, int64_t end);               // blocks
  void (*attention_vjp_rows)(const AttentionVjpJob&, int64_t begin, int64_t end);   // rows
  void (*attention_vjp_keys)(const AttentionVjpJob&, int64_t begin, int64_t end);   // ranges of keys
};

}  // namespace sparsegen
