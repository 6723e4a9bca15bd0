// Products of matrices: sums of 6 rows × 16 columns in registers. The second factor is stored in panels of 16 columns,
// each (K, 16), so that it is read in order.
#pragma once

#include <type_traits>

#include "vectors.h"

namespace {

constexpr long P = 2 * W;  // columns of a panel

// c (T, 16) += a b with a(i, k) = a[i si + k sk], and b (K, 16) a panel.
template <int T>
inline void product(const float* a, long si, long sk, const float* b, long K, vec (&c)[T][2]) {
    for (long k = 0; k < K; k++, a += sk, b += P) {
        vec left = load(b), right = load(b + W);
#pragma GCC unroll 6
        for (int i = 0; i < T; i++) {
            float x = a[i * si];
            c[i][0] += x * left;
            c[i][1] += x * right;
        }
    }
}

// Rows of 16, `step` apart.
template <int T>
inline void store_rows(float* to, long step, const vec (&c)[T][2]) {
    for (int i = 0; i < T; i++) store(to + i * step, c[i][0]), store(to + i * step + W, c[i][1]);
}

template <int T>
inline void fill(vec (&c)[T][2], const float* bias) {
    vec left = {}, right = {};
    if (bias) left = load(bias), right = load(bias + W);
    for (int i = 0; i < T; i++) c[i][0] = left, c[i][1] = right;
}

// Call f(first row, number) for n rows, 6 at a time, with the number as a type.
template <class F>
inline void by_rows(long n, const F& f) {
    long r = 0;
    for (; r + 6 <= n; r += 6) f(r, std::integral_constant<int, 6>{});
    switch (n - r) {
        case 5: return f(r, std::integral_constant<int, 5>{});
        case 4: return f(r, std::integral_constant<int, 4>{});
        case 3: return f(r, std::integral_constant<int, 3>{});
        case 2: return f(r, std::integral_constant<int, 2>{});
        case 1: return f(r, std::integral_constant<int, 1>{});
    }
}

// Pack a (K, columns) matrix, with these strides of rows and columns, into panels.
inline void pack(const float* from, long row, long column, long K, long columns, float* to) {
    for (long p = 0; p < columns; p += P)
        if (row == 1 && K % W == 0)
            for (long k = 0; k < K; k += W, to += W * P)
                for (long half = 0; half < P; half += W) {
                    const float* rows[W];
                    for (int r = 0; r < W; r++) rows[r] = from + k + (p + half + r) * column;
                    transpose(rows, to + half, P);
                }
        else
            for (long k = 0; k < K; k++)
                for (long j = 0; j < P; j++) *to++ = from[k * row + (p + j) * column];
}

}  // namespace
