"""The baseline of text classification: logistic regression on TF-IDF weights of words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

# Inverse strength of the penalty |W|² / 2C on one column of weights per class. Larger than the usual 1, since TF-IDF
# rows have length 1.
C = 10.0


def linear_accuracy(
    texts: Sequence[str], labels: Sequence[int], val_texts: Sequence[str], truth: Sequence[int]
) -> float:
    """Return the accuracy of scikit-learn's TF-IDF with logistic regression on validation texts."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer()
    try:
        X = vectorizer.fit_transform(texts)
    except ValueError:  # no word of two letters: the most frequent class
        return float(np.mean(np.asarray(truth) == np.bincount(labels).argmax()))
    # For two classes scikit-learn has one column of weights, whose penalty is twice that of two columns.
    scale = 2 if len(set(labels)) == 2 else 1
    model = LogisticRegression(C=scale * C, tol=1e-6, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, labels)
    return float(np.mean(model.predict(vectorizer.transform(val_texts)) == np.asarray(truth)))
