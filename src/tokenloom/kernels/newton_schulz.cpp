// X ← p(X Xᵀ) X with p(A) = a I + b A + c A², a few times, for many matrices, which Muon orthogonalizes. Source: Jordan
// et al. 2024, "Muon".
//
// Of a symmetric product only the upper triangle is computed, which saves a third of the work for square matrices
// and nearly half for wide ones.

#include <algorithm>
#include <utility>
#include <vector>

#include "panels.h"
#include "threads.h"

namespace {

// to (rows, columns) = α a b + β plus, with a (rows, K), and b (K, columns) in panels. symmetric: the result is known to
// be symmetric, and only its upper triangle is computed.
void multiply(const float* a, const float* b, long rows, long K, long columns, float* to, bool symmetric,
              float alpha = 1.0f, float beta = 0.0f, const float* plus = nullptr) {
    for (long q = 0; q < columns; q += P)
        by_rows(symmetric ? q + P : rows, [=](long r, auto T) {
            vec c[T][2] = {};
            product(a + r * K, K, 1, b + q * K, K, c);
            if (plus)
                for (int i = 0; i < T; i++)
                    for (int half = 0; half < 2; half++)
                        c[i][half] = alpha * c[i][half] + beta * load(plus + (r + i) * columns + q + half * W);
            store_rows(to + r * columns + q, columns, c);
        });
    if (!symmetric) return;
    for (long r = P; r < rows; r += W)
        for (long q = 0; q < r / P * P; q += W) {
            const float* above[W];
            for (int i = 0; i < W; i++) above[i] = to + (q + i) * columns + r;
            transpose(above, to + r * columns + q, columns);
        }
}

struct Polynomial {
    float a, b, c;
    int steps;
};

// One matrix (rows, columns), in place, padded with zeros to whole panels.
void iterate(float* matrix, long rows, long columns, Polynomial p) {
    const long R = (rows + P - 1) / P * P, C = (columns + P - 1) / P * P, square = R * R, wide = R * C;
    static thread_local std::vector<float> memory;
    memory.resize(3 * wide + 6 * square);
    float *X = memory.data(), *next = X + wide, *panels = next + wide, *A = panels + wide, *B = A + square;
    float *S = B + square, *product = S + square, *spare = product + square, *square_panels = spare + square;
    std::fill(X, X + wide, 0.0f);
    for (long r = 0; r < rows; r++) std::copy(matrix + r * columns, matrix + (r + 1) * columns, X + r * C);

    const auto gram = [&] {  // A = X Xᵀ
        pack(X, 1, C, C, R, panels);
        multiply(X, panels, R, C, R, A, true);
    };
    const auto polynomial = [&] {  // B = p(A)
        pack(A, R, 1, R, R, square_panels);
        multiply(A, square_panels, R, R, R, B, true, p.c, p.b, A);
        for (long r = 0; r < R; r++) B[r * R + r] += p.a;
    };
    const auto apply = [&](const float* to_all) {  // X = to_all X
        pack(X, C, 1, R, C, panels);
        multiply(to_all, panels, R, R, C, next, false);
        std::swap(X, next);
    };
    if (columns < 2 * rows) {
        for (int step = 0; step < p.steps; step++) gram(), polynomial(), apply(B);
    } else {
        // p(A) commutes with A: the polynomials of all steps are multiplied first, among small matrices.
        gram();
        for (int step = 0; step < p.steps; step++) {
            polynomial();
            if (step + 1 < p.steps) multiply(B, square_panels, R, R, R, S, true);  // S = p(A) A
            if (step == 0) {
                std::copy(B, B + square, product);
            } else {
                pack(product, R, 1, R, R, square_panels);
                multiply(B, square_panels, R, R, R, spare, true);
                std::swap(product, spare);
            }
            if (step + 1 == p.steps) break;
            pack(S, R, 1, R, R, square_panels);
            multiply(B, square_panels, R, R, R, A, true);
        }
        apply(product);
    }
    for (long r = 0; r < rows; r++) std::copy(X + r * C, X + r * C + columns, matrix + r * columns);
}

}  // namespace

// X (n, rows, columns), rows ≤ columns, in place.
EXPORT void newton_schulz(float* X, long n, long rows, long columns, float a, float b, float c, int steps, int threads) {
    for_each(n, threads, [=](long i) { iterate(X + i * rows * columns, rows, columns, {a, b, c, steps}); });
}
