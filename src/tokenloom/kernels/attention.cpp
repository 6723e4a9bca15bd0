// Attention Y = softmax(Q Kᵀ / √Dh) V of many small heads, forward and backward; scores never leave the
// first-level caches. Source of the two passes: Dao et al. 2022, "FlashAttention", algorithms 1, 4.
//
// Blocks of 32 queries are multiplied with all keys that they may attend to. Products are sums of 4 rows × 16 columns in
// registers. The operands of products are packed first: heads are interleaved in the caller's memory, and padded keys
// are left out, so that each query attends to a prefix of the packed keys.

#include <algorithm>
#include <cmath>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace {

constexpr int ROWS = 32;  // queries per block
constexpr int R = 4;      // rows of a product in registers

inline long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Strides {
    long batch, head, token;
    const float* at(const float* of, long b, long h) const { return of + b * batch + h * head; }
    float* at(float* of, long b, long h) const { return of + b * batch + h * head; }
};

// C (4 × 8 NV) = or += Σ_k A[r, k] B[k, :]; A has a step for rows and one for k.
template <int NV, bool ADD>
inline void product(const float* A, long a_row, long a_k, const float* B, long ldb, long K, float* C, long ldc) {
    vec sum[R][NV];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < NV; c++) sum[r][c] = ADD ? load(C + r * ldc + c * W) : vec{};
    for (long k = 0; k < K; k++) {
        vec b[NV];
        for (int c = 0; c < NV; c++) b[c] = load(B + k * ldb + c * W);
        for (int r = 0; r < R; r++) {
            float a = A[r * a_row + k * a_k];
            for (int c = 0; c < NV; c++) sum[r][c] += a * b[c];
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < NV; c++) store(C + r * ldc + c * W, sum[r][c]);
}

// The same for all D columns.
template <int D, bool ADD>
inline void product_of_head(const float* A, long a_row, long a_k, const float* B, long K, float* C) {
    constexpr int NV = D % (3 * W) == 0 ? 3 : D % (2 * W) == 0 ? 2 : 1;
    for (int c = 0; c < D; c += NV * W) product<NV, ADD>(A, a_row, a_k, B + c, D, K, C + c, D);
}

// Packed rows of queries (rows, D), times a factor; zeros up to `padded` rows.
template <int D>
inline void pack(const float* from, long stride, long rows, long padded, float factor, float* to) {
    for (long i = 0; i < rows; i++)
        for (int d = 0; d < D; d += W) store(to + i * D + d, load(from + i * stride + d) * factor);
    std::memset(to + rows * D, 0, sizeof(float) * (padded - rows) * D);
}

// The keys of one row of the batch without padding, and how many of them each query attends to.
struct Keys {
    std::vector<long> places;  // in the caller's memory
    std::vector<int> seen;     // per query; never decreasing
    long count, padded;

    // real: which of M keys are no padding; all if nullptr.
    void find(const unsigned char* real, long N, long M, bool causal) {
        places.clear();
        seen.resize(N);
        for (long m = 0; m < M; m++) {
            if (real == nullptr || real[m]) places.push_back(m);
            if (causal) seen[m] = (int)places.size();
        }
        count = (long)places.size(), padded = up(count, W);
        if (!causal) std::fill(seen.begin(), seen.end(), (int)count);
    }

    // Of the last of up to R queries from this one on.
    long seen_by_group(long first) const { return seen[std::min(first + R, (long)seen.size()) - 1]; }

    // (padded, D), with zeros at the end.
    template <int D>
    void pack(const float* from, long stride, float* to) const {
        for (long i = 0; i < count; i++) std::memcpy(to + i * D, from + places[i] * stride, sizeof(float) * D);
        std::memset(to + count * D, 0, sizeof(float) * (padded - count) * D);
    }

    // (D, padded).
    template <int D>
    void pack_transposed(const float* from, long stride, float* to) const {
        static const float zeros[D] = {};
        for (long i = 0; i < padded; i += W)
            for (int d = 0; d < D; d += W) {
                const float* rows[W];
                for (int r = 0; r < W; r++) rows[r] = (i + r < count ? from + places[i + r] * stride : zeros) + d;
                transpose(rows, to + d * padded + i, padded);
            }
    }

    // Back to M rows, zeros for padded keys.
    template <int D>
    void unpack(const float* from, long M, float* to, long stride) const {
        for (long m = 0, i = 0; m < M; m++)
            if (i < count && places[i] == m) std::memcpy(to + m * stride, from + i++ * D, sizeof(float) * D);
            else std::memset(to + m * stride, 0, sizeof(float) * D);
    }
};

Keys& keys_of_thread() {
    static thread_local Keys keys;
    return keys;
}

template <int D>
inline void unpack(const float* from, long rows, float factor, float* to, long stride) {
    for (long i = 0; i < rows; i++)
        for (int d = 0; d < D; d += W) store(to + i * stride + d, load(from + i * D + d) * factor);
}

// Scores of four rows with the first `seen` keys, in whole registers.
template <int D>
inline void scores(const float* Q, const float* transposed, long padded, long seen, float* S) {
    for (long j = 0; j < seen; j += 2 * W)
        if (j + W < padded) product<2, false>(Q, D, 1, transposed + j, padded, D, S + j, padded);
        else product<1, false>(Q, D, 1, transposed + j, padded, D, S + j, padded);
}

inline ivec columns(long j) {
    ivec places = {0, 1, 2, 3, 4, 5, 6, 7};
    return places + (std::int32_t)j;
}

float* scratch(long floats) {
    static thread_local std::vector<float> memory;
    if ((long)memory.size() < floats) memory.resize(floats);
    return memory.data();
}

struct Shape {
    long B, H, Hk, N, M;
    const unsigned char* real;  // (B, M), or nullptr
    bool causal;
    float scale;
    int threads;
};

template <int D>
void forward(const float* Q, const float* K, const float* V, float* Y, float* statistics, const Strides* s, Shape n) {
    const long N = n.N, group = n.H / n.Hk;
    for_each(n.B * n.Hk, n.threads, [=](long item) {
        const long b = item / n.Hk, hk = item % n.Hk;
        Keys& keys = keys_of_thread();
        keys.find(n.real ? n.real + b * n.M : nullptr, N, n.M, n.causal);
        const long padded = keys.padded;
        float* Kt = scratch(padded * 2 * D + ROWS * (2 * D + padded));
        float *Vs = Kt + padded * D, *Qs = Vs + padded * D, *Ys = Qs + ROWS * D, *S = Ys + ROWS * D;
        keys.pack_transposed<D>(s[1].at(K, b, hk), s[1].token, Kt);
        keys.pack<D>(s[2].at(V, b, hk), s[2].token, Vs);
        for (long h = hk * group; h < (hk + 1) * group; h++)
            for (long first = 0; first < N; first += ROWS) {
                const long rows = N - first < ROWS ? N - first : ROWS;
                pack<D>(s[0].at(Q, b, h) + first * s[0].token, s[0].token, rows, up(rows, R), n.scale, Qs);
                for (long r0 = 0; r0 < rows; r0 += R) {
                    const long most_seen = keys.seen_by_group(first + r0), end = up(most_seen, W);
                    scores<D>(Qs + r0 * D, Kt, padded, most_seen, S);
                    float inverse[R];
                    for (int r = 0; r < R; r++) {
                        const long i = first + r0 + r;
                        const std::int32_t seen = i < N ? keys.seen[i] : most_seen;
                        float* row = S + r * padded;
                        vec largest = {};
                        largest += -INFINITY;
                        for (long j = 0; j < seen; j += W) {
                            vec x = load(row + j);
                            largest = (x > largest) & (columns(j) < seen) ? x : largest;
                        }
                        float most = largest[0];
                        for (int c = 1; c < W; c++) most = largest[c] > most ? largest[c] : most;
                        vec total = {};
                        for (long j = 0; j < end; j += W) {
                            vec e = dropped(exponential(load(row + j) - most), columns(j) >= seen);
                            store(row + j, e);
                            total += e;
                        }
                        const float sum = sum_of(total);
                        inverse[r] = seen > 0 ? 1.0f / sum : 0.0f;
                        if (i < N) {
                            float* mark = statistics + 2 * ((b * n.H + h) * N + i);
                            mark[0] = most, mark[1] = inverse[r];
                        }
                    }
                    product_of_head<D, false>(S, padded, 1, Vs, most_seen, Ys);
                    float* to = s[3].at(Y, b, h) + (first + r0) * s[3].token;
                    for (long r = 0; r < R && r0 + r < rows; r++)
                        unpack<D>(Ys + r * D, 1, inverse[r], to + r * s[3].token, 0);
                }
            }
    });
}

template <int D>
void backward(const float* Q, const float* K, const float* V, const float* Y, const float* dY, const float* statistics,
              float* dQ, float* dK, float* dV, const Strides* s, Shape n) {
    const long N = n.N, group = n.H / n.Hk;
    for_each(n.B * n.Hk, n.threads, [=](long item) {
        const long b = item / n.Hk, hk = item % n.Hk;
        Keys& keys = keys_of_thread();
        keys.find(n.real ? n.real + b * n.M : nullptr, N, n.M, n.causal);
        const long padded = keys.padded;
        float* Kt = scratch(padded * 5 * D + ROWS * (3 * D + 2 * padded));
        float *Vt = Kt + padded * D, *Ks = Vt + padded * D, *dKs = Ks + padded * D, *dVs = dKs + padded * D;
        float *Qs = dVs + padded * D, *dYs = Qs + ROWS * D, *dQs = dYs + ROWS * D;
        float *P = dQs + ROWS * D, *dS = P + ROWS * padded;
        keys.pack_transposed<D>(s[1].at(K, b, hk), s[1].token, Kt);
        keys.pack_transposed<D>(s[2].at(V, b, hk), s[2].token, Vt);
        keys.pack<D>(s[1].at(K, b, hk), s[1].token, Ks);
        std::memset(dKs, 0, sizeof(float) * padded * 2 * D);
        for (long h = hk * group; h < (hk + 1) * group; h++)
            for (long first = 0; first < N; first += ROWS) {
                const long rows = N - first < ROWS ? N - first : ROWS, whole = up(rows, R);
                pack<D>(s[0].at(Q, b, h) + first * s[0].token, s[0].token, rows, whole, n.scale, Qs);
                const float* gradient = s[4].at(dY, b, h) + first * s[4].token;
                const float* result = s[3].at(Y, b, h) + first * s[3].token;
                pack<D>(gradient, s[4].token, rows, whole, 1.0f, dYs);
                for (long r0 = 0; r0 < whole; r0 += R) {
                    float *Pr = P + r0 * padded, *dSr = dS + r0 * padded;
                    const long most_seen = keys.seen_by_group(first + r0), end = up(most_seen, W);
                    scores<D>(Qs + r0 * D, Kt, padded, most_seen, Pr);
                    scores<D>(dYs + r0 * D, Vt, padded, most_seen, dSr);
                    for (int r = 0; r < R; r++) {
                        const long i = first + r0 + r;
                        float *p = Pr + r * padded, *ds = dSr + r * padded;
                        const std::int32_t seen = i < N ? keys.seen[i] : 0;
                        if (seen == 0) {
                            std::memset(p, 0, sizeof(float) * end);
                            std::memset(ds, 0, sizeof(float) * end);
                            continue;
                        }
                        vec along = {};
                        for (int d = 0; d < D; d += W)
                            along += load(dYs + (r0 + r) * D + d) * load(result + (r0 + r) * s[3].token + d);
                        const float mean = sum_of(along);
                        const float* mark = statistics + 2 * ((b * n.H + h) * N + i);
                        const float most = mark[0], inverse = mark[1];
                        for (long j = 0; j < end; j += W) {
                            ivec unseen = columns(j) >= seen;
                            vec e = dropped(exponential(load(p + j) - most) * inverse, unseen);
                            store(p + j, e);
                            store(ds + j, dropped(e * (load(ds + j) - mean), unseen));
                        }
                    }
                    product_of_head<D, false>(dSr, padded, 1, Ks, most_seen, dQs + r0 * D);
                }
                unpack<D>(dQs, rows, n.scale, s[5].at(dQ, b, h) + first * s[5].token, s[5].token);
                for (long j = 0, from = 0; j < keys.seen_by_group(first + whole - R); j += R) {
                    // Rows of queries that attend to none of these keys have no scores.
                    while (keys.seen_by_group(first + from) <= j) from += R;
                    const float *p = P + from * padded + j, *ds = dS + from * padded + j;
                    product_of_head<D, true>(ds, 1, padded, Qs + from * D, whole - from, dKs + j * D);
                    product_of_head<D, true>(p, 1, padded, dYs + from * D, whole - from, dVs + j * D);
                }
            }
        keys.unpack<D>(dKs, n.M, s[6].at(dK, b, hk), s[6].token);
        keys.unpack<D>(dVs, n.M, s[7].at(dV, b, hk), s[7].token);
    });
}

}  // namespace

// Pointers to the first number; strides in numbers, (batch, head, token) of each of Q, K, V, Y; features of a head are
// contiguous. statistics (B, H, N, 2), for the backward pass: of each row the largest score, and one over the sum of
// exponentials. real (B, M): false for padding keys, none if nullptr; causal: query n attends to keys up to n, N = M.
// Returns 0 for head widths without code.
EXPORT int attention_forward(const float* Q, const float* K, const float* V, float* Y, float* statistics, const Strides* strides,
                             const unsigned char* real, long B, long H, long Hk, long N, long M, long D, int causal,
                             float scale, int threads) {
    const Shape n{B, H, Hk, N, M, real, causal != 0, scale, threads};
    if (D == 8) return forward<8>(Q, K, V, Y, statistics, strides, n), 1;
    if (D == 16) return forward<16>(Q, K, V, Y, statistics, strides, n), 1;
    if (D == 24) return forward<24>(Q, K, V, Y, statistics, strides, n), 1;
    if (D == 32) return forward<32>(Q, K, V, Y, statistics, strides, n), 1;
    return 0;
}

// Strides of Q, K, V, Y, dY, dQ, dK and dV.
EXPORT int attention_backward(const float* Q, const float* K, const float* V, const float* Y, const float* dY,
                              const float* statistics, float* dQ, float* dK, float* dV, const Strides* strides,
                              const unsigned char* real, long B, long H, long Hk, long N, long M, long D, int causal,
                              float scale, int threads) {
    const Shape n{B, H, Hk, N, M, real, causal != 0, scale, threads};
    if (D == 8) return backward<8>(Q, K, V, Y, dY, statistics, dQ, dK, dV, strides, n), 1;
    if (D == 16) return backward<16>(Q, K, V, Y, dY, statistics, dQ, dK, dV, strides, n), 1;
    if (D == 24) return backward<24>(Q, K, V, Y, dY, statistics, dQ, dK, dV, strides, n), 1;
    if (D == 32) return backward<32>(Q, K, V, Y, dY, statistics, dQ, dK, dV, strides, n), 1;
    return 0;
}
