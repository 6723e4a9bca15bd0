// W_out f(W_in x + b) + b', forward and backward: both products of a block of rows while the hidden features are in
// the L2 cache. Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication", for the blocks.
// Activations are stored in panels too, (n, 16) for a block of n rows: one product writes what the next one reads in order.

#include <algorithm>

#include "activations.h"
#include "panels.h"
#include "threads.h"

namespace {

constexpr long ROWS = 96;   // per block
constexpr long GROUPS = 8;  // of blocks, each with its own sums for the weights: independent of the number of threads

// y (n, D) = h b + bias, with h (n, F) and b (F, D) in panels.
inline void narrow(const float* h, const float* b, const float* bias, float* y, long n, long D, long F) {
    for (long q = 0; q < D; q += P)
        by_rows(n, [=](long r, auto T) {
            vec c[T][2];
            fill(c, bias ? bias + q : nullptr);
            for (long p = 0; p < F; p += P) product(h + p * n + r * P, P, 1, b + q * F + p * P, P, c);
            store_rows(y + r * D + q, D, c);
        });
}

// to (D, F) += aᵀ h, with a (n, D), and h (n, F) in panels.
inline void outer(const float* a, const float* h, float* to, long n, long D, long F) {
    for (long p = 0; p < F; p += P)
        by_rows(D, [=](long d, auto T) {
            float* at = to + d * F + p;
            vec c[T][2];
            for (int i = 0; i < T; i++) c[i][0] = load(at + i * F), c[i][1] = load(at + i * F + W);
            product(a + d, 1, D, h + p * n, n, c);
            store_rows(at, F, c);
        });
}

struct Model {
    const float *W_in, *b_in, *W_out, *b_out;
    long D, F;
};

template <void activation(vec, vec&, vec&)>
void forward(const Model& m, const float* X, float* Y, float* H, float* S, float* packed, long rows, int threads) {
    const long D = m.D, F = m.F;
    float *into = packed, *back = packed + D * F;
    pack(m.W_in, 1, D, D, F, into);
    pack(m.W_out, 1, F, F, D, back);
    for_each((rows + ROWS - 1) / ROWS, threads, [=, &m](long block) {
        const long first = block * ROWS, n = std::min(ROWS, rows - first);
        const float* x = X + first * D;
        float *h = H + first * F, *s = S + first * F;
        for (long p = 0; p < F; p += P)
            by_rows(n, [=, &m](long r, auto T) {
                vec c[T][2], slope[T][2];
                fill(c, m.b_in ? m.b_in + p : nullptr);
                product(x + r * D, D, 1, into + p * D, D, c);
                for (int i = 0; i < T; i++)
                    for (int half = 0; half < 2; half++) activation(c[i][half], c[i][half], slope[i][half]);
                store_rows(h + p * n + r * P, P, c);
                store_rows(s + p * n + r * P, P, slope);
            });
        narrow(h, back, m.b_out, Y + first * D, n, D, F);
    });
}

}  // namespace

// W_in (F, D), W_out (D, F), b_in (F) and b_out (D) or none; X (rows, D) → Y (rows, D), and for the backward pass H and S,
// rows · F numbers each: activations and their derivatives. packed: 2 D F numbers of scratch. D and F are multiples of 16.
EXPORT void mlp_forward(const float* W_in, const float* b_in, const float* W_out, const float* b_out, const float* X,
                        float* Y, float* H, float* S, float* packed, long rows, long D, long F, int squared, int threads) {
    const Model m{W_in, b_in, W_out, b_out, D, F};
    (squared ? forward<relu_squared> : forward<gelu>)(m, X, Y, H, S, packed, rows, threads);
}

// Number of sums per weight.
EXPORT long mlp_groups(long rows) { return std::min(GROUPS, (rows + ROWS - 1) / ROWS); }

// Scratch numbers per group.
EXPORT long mlp_scratch(long F) { return ROWS * F; }

// dY (rows, D) → dX (rows, D) and sums (groups, 2 D F + F + D): of dW_inᵀ (D, F), dW_out, db_in and db_out.
EXPORT void mlp_backward(const float* W_in, const float* W_out, const float* X, const float* H, const float* S,
                         const float* dY, float* dX, float* sums, float* packed, float* scratch, long rows, long D, long F,
                         int threads) {
    float *into = packed, *back = packed + D * F;
    pack(W_out, F, 1, D, F, back);
    pack(W_in, D, 1, F, D, into);
    const long blocks = (rows + ROWS - 1) / ROWS, groups = mlp_groups(rows), size = 2 * D * F + F + D;
    for_each(groups, threads, [=](long group) {
        float *dW_in = sums + group * size, *dW_out = dW_in + D * F, *db_in = dW_out + D * F, *db_out = db_in + F;
        float* z = scratch + group * mlp_scratch(F);  // dY W_out ⊙ S
        std::memset(dW_in, 0, sizeof(float) * size);
        for (long block = group * blocks / groups; block < (group + 1) * blocks / groups; block++) {
            const long first = block * ROWS, n = std::min(ROWS, rows - first);
            const float *x = X + first * D, *h = H + first * F, *s = S + first * F, *dy = dY + first * D;
            for (long p = 0; p < F; p += P)
                by_rows(n, [=](long r, auto T) {
                    vec c[T][2] = {}, sum[1][2];
                    product(dy + r * D, D, 1, back + p * D, D, c);
                    fill(sum, db_in + p);
                    for (int i = 0; i < T; i++)
                        for (int half = 0; half < 2; half++) {
                            c[i][half] *= load(s + p * n + (r + i) * P + half * W);
                            sum[0][half] += c[i][half];
                        }
                    store_rows(db_in + p, P, sum);
                    store_rows(z + p * n + r * P, P, c);
                });
            narrow(z, into, nullptr, dX + first * D, n, D, F);
            outer(x, z, dW_in, n, D, F);
            outer(dy, h, dW_out, n, D, F);
            for (long r = 0; r < n; r++)
                for (long d = 0; d < D; d++) db_out[d] += dy[r * D + d];
        }
    });
}
