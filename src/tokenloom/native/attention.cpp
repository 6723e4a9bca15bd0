// Causal attention Y = softmax(Q Kᵀ / √Dh) V of many small heads, forward and backward, with no score ever written to
// memory that is not in the first caches. Source of the two passes: Dao et al. 2022, "FlashAttention", algorithms 1, 4.
//
// Rows of 32 queries are taken at a time against all keys that they see. Products are sums of 4 rows × 16 columns in
// registers. Everything that a product reads is packed first: heads lie beside each other in what the caller has.

#include <algorithm>
#include <cmath>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace {

constexpr int ROWS = 32;  // queries at a time
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
    for (int c = 0; c + 2 * W <= D; c += 2 * W) product<2, ADD>(A, a_row, a_k, B + c, D, K, C + c, D);
    if constexpr (D % (2 * W) != 0) product<1, ADD>(A, a_row, a_k, B + D - W, D, K, C + D - W, D);
}

// Rows of a head, packed: (rows, D), times a factor; zeros up to `padded` rows.
template <int D>
inline void pack(const float* from, long stride, long rows, long padded, float factor, float* to) {
    for (long i = 0; i < rows; i++)
        for (int d = 0; d < D; d += W) store(to + i * D + d, load(from + i * stride + d) * factor);
    std::memset(to + rows * D, 0, sizeof(float) * (padded - rows) * D);
}

// The same, transposed: (D, padded).
template <int D>
inline void pack_transposed(const float* from, long stride, long rows, long padded, float* to) {
    for (int d = 0; d < D; d++) {
        for (long i = 0; i < rows; i++) to[d * padded + i] = from[i * stride + d];
        for (long i = rows; i < padded; i++) to[d * padded + i] = 0.0f;
    }
}

template <int D>
inline void unpack(const float* from, long rows, float factor, float* to, long stride) {
    for (long i = 0; i < rows; i++)
        for (int d = 0; d < D; d += W) store(to + i * stride + d, load(from + i * D + d) * factor);
}

// Scores of four rows, the first of them query i, with all keys up to the last that they see, in whole registers.
template <int D>
inline void scores(const float* Q, const float* transposed, long padded, long i, float* S) {
    for (long j = 0; j < i + R; j += 2 * W) product<2, false>(Q, D, 1, transposed + j, padded, D, S + j, padded);
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
    long B, H, Hk, N;
    int threads;
    float scale;
};

template <int D>
void forward(const float* Q, const float* K, const float* V, float* Y, float* logs, const Strides* s, Shape n) {
    const long N = n.N, padded = up(N, 2 * W), group = n.H / n.Hk;
    for_each(n.B * n.Hk, n.threads, [=](long item) {
        const long b = item / n.Hk, hk = item % n.Hk;
        float* Kt = scratch(padded * 2 * D + ROWS * (2 * D + padded));
        float *Vs = Kt + padded * D, *Qs = Vs + padded * D, *Ys = Qs + ROWS * D, *S = Ys + ROWS * D;
        pack_transposed<D>(s[1].at(K, b, hk), s[1].token, N, padded, Kt);
        pack<D>(s[2].at(V, b, hk), s[2].token, N, padded, 1.0f, Vs);
        for (long h = hk * group; h < (hk + 1) * group; h++)
            for (long first = 0; first < N; first += ROWS) {
                const long rows = N - first < ROWS ? N - first : ROWS;
                pack<D>(s[0].at(Q, b, h) + first * s[0].token, s[0].token, rows, up(rows, R), n.scale, Qs);
                for (long r0 = 0; r0 < rows; r0 += R) {
                    scores<D>(Qs + r0 * D, Kt, padded, first + r0, S);
                    const long end = up(first + r0 + R, W);
                    float inverse[R];
                    for (int r = 0; r < R; r++) {
                        const std::int32_t i = first + r0 + r;
                        float* row = S + r * padded;
                        vec largest = {};
                        largest += -INFINITY;
                        for (long j = 0; j <= i; j += W) {
                            vec x = load(row + j);
                            largest = (x > largest) & (columns(j) <= i) ? x : largest;
                        }
                        float most = largest[0];
                        for (int c = 1; c < W; c++) most = largest[c] > most ? largest[c] : most;
                        vec total = {};
                        for (long j = 0; j < end; j += W) {
                            vec e = dropped(exponential(load(row + j) - most), columns(j) > i);
                            store(row + j, e);
                            total += e;
                        }
                        const float sum = sum_of(total);
                        inverse[r] = 1.0f / sum;
                        if (i < N) logs[(b * n.H + h) * N + i] = most + std::log(sum);
                    }
                    product_of_head<D, false>(S, padded, 1, Vs, std::min(first + r0 + R, padded), Ys);
                    float* to = s[3].at(Y, b, h) + (first + r0) * s[3].token;
                    for (long r = 0; r < R && r0 + r < rows; r++)
                        unpack<D>(Ys + r * D, 1, inverse[r], to + r * s[3].token, 0);
                }
            }
    });
}

template <int D>
void backward(const float* Q, const float* K, const float* V, const float* Y, const float* dY, const float* logs,
              float* dQ, float* dK, float* dV, const Strides* s, Shape n) {
    const long N = n.N, padded = up(N, 2 * W), group = n.H / n.Hk;
    for_each(n.B * n.Hk, n.threads, [=](long item) {
        const long b = item / n.Hk, hk = item % n.Hk;
        float* Kt = scratch(padded * 5 * D + ROWS * (3 * D + 2 * padded));
        float *Vt = Kt + padded * D, *Ks = Vt + padded * D, *dKs = Ks + padded * D, *dVs = dKs + padded * D;
        float *Qs = dVs + padded * D, *dYs = Qs + ROWS * D, *dQs = dYs + ROWS * D;
        float *P = dQs + ROWS * D, *dS = P + ROWS * padded;
        pack_transposed<D>(s[1].at(K, b, hk), s[1].token, N, padded, Kt);
        pack_transposed<D>(s[2].at(V, b, hk), s[2].token, N, padded, Vt);
        pack<D>(s[1].at(K, b, hk), s[1].token, N, padded, 1.0f, Ks);
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
                    scores<D>(Qs + r0 * D, Kt, padded, first + r0, Pr);
                    scores<D>(dYs + r0 * D, Vt, padded, first + r0, dSr);
                    const long end = up(first + r0 + R, W);
                    for (int r = 0; r < R; r++) {
                        const long i = first + r0 + r;
                        float *p = Pr + r * padded, *ds = dSr + r * padded;
                        if (i >= N) {
                            std::memset(p, 0, sizeof(float) * end);
                            std::memset(ds, 0, sizeof(float) * end);
                            continue;
                        }
                        vec along = {};
                        for (int d = 0; d < D; d += W)
                            along += load(dYs + (r0 + r) * D + d) * load(result + (r0 + r) * s[3].token + d);
                        const float mean = sum_of(along), log = logs[(b * n.H + h) * N + i];
                        for (long j = 0; j < end; j += W) {
                            ivec future = columns(j) > (std::int32_t)i;
                            vec e = dropped(exponential(load(p + j) - log), future);
                            store(p + j, e);
                            store(ds + j, dropped(e * (load(ds + j) - mean), future));
                        }
                    }
                    product_of_head<D, false>(dSr, padded, 1, Ks, std::min(first + r0 + R, padded), dQs + r0 * D);
                }
                unpack<D>(dQs, rows, n.scale, s[5].at(dQ, b, h) + first * s[5].token, s[5].token);
                for (long j = 0; j < first + whole; j += R) {
                    // Rows of queries before these keys do not see them, and hold no scores of theirs.
                    const long from = j > first ? j - first : 0;
                    const float *p = P + from * padded + j, *ds = dS + from * padded + j;
                    product_of_head<D, true>(ds, 1, padded, Qs + from * D, whole - from, dKs + j * D);
                    product_of_head<D, true>(p, 1, padded, dYs + from * D, whole - from, dVs + j * D);
                }
            }
        unpack<D>(dKs, N, 1.0f, s[6].at(dK, b, hk), s[6].token);
        unpack<D>(dVs, N, 1.0f, s[7].at(dV, b, hk), s[7].token);
    });
}

}  // namespace

// Pointers to the first number; strides in numbers, (batch, head, token) of each of Q, K, V, Y; features of a head stand
// side by side. logs (B, H, N) is what the backward pass needs of each row. Returns 0 for heads of a width not made here.
EXPORT int attention_forward(const float* Q, const float* K, const float* V, float* Y, float* logs, const Strides* strides,
                             long B, long H, long Hk, long N, long D, float scale, int threads) {
    const Shape n{B, H, Hk, N, threads, scale};
    if (D == 8) return forward<8>(Q, K, V, Y, logs, strides, n), 1;
    if (D == 16) return forward<16>(Q, K, V, Y, logs, strides, n), 1;
    if (D == 24) return forward<24>(Q, K, V, Y, logs, strides, n), 1;
    if (D == 32) return forward<32>(Q, K, V, Y, logs, strides, n), 1;
    return 0;
}

// Strides of Q, K, V, Y, dY, dQ, dK and dV.
EXPORT int attention_backward(const float* Q, const float* K, const float* V, const float* Y, const float* dY,
                              const float* logs, float* dQ, float* dK, float* dV, const Strides* strides, long B, long H,
                              long Hk, long N, long D, float scale, int threads) {
    const Shape n{B, H, Hk, N, threads, scale};
    if (D == 8) return backward<8>(Q, K, V, Y, dY, logs, dQ, dK, dV, strides, n), 1;
    if (D == 16) return backward<16>(Q, K, V, Y, dY, logs, dQ, dK, dV, strides, n), 1;
    if (D == 24) return backward<24>(Q, K, V, Y, dY, logs, dQ, dK, dV, strides, n), 1;
    if (D == 32) return backward<32>(Q, K, V, Y, dY, logs, dQ, dK, dV, strides, n), 1;
    return 0;
}
