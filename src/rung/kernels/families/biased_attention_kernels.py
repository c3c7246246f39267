"""The kernels of `biased_attention.py`: softmax(scale * q k^T + bias) v and its gradients.

q: [batch, heads, m, d]; k: [batch, heads, n, d]; v: [batch, heads, n, e]. Exponentials are powers of 2, and so is what LSE
keeps: log2 of the sum of a query's exponentials, infinite for a query that sees no key, whose weights and gradients are 0.

With DROPOUT the product with v takes the weights that are kept, over keep, the probability of that. LSE is of all weights. Every kernel
draws anew which are kept, by SEED and the place of a weight (`rung.kernels.dropout` says how, in PyTorch).
"""

import triton
import triton.language as tl

from rung.kernels.dropout import ROUNDS
from rung.kernels.families.operands import single

PHILOX_ROUNDS = tl.constexpr(ROUNDS)


@triton.jit
def _rows(X, stride, row, length, DIM: tl.constexpr, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    column = tl.arange(0, WIDTH)
    mask = row[:, None] < length
    if DIM < WIDTH:
        mask = mask & (column[None, :] < DIM)
    x = tl.load(X + row[:, None] * stride + column[None, :], mask=mask, other=0.0)
    if EXACT:
        x = x.to(tl.float32)
    return x


@triton.jit
def _store(Y, stride, row, length, y, DIM: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    mask = row[:, None] < length
    if DIM < WIDTH:
        mask = mask & (column[None, :] < DIM)
    tl.store(Y + row[:, None] * stride + column[None, :], y.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _product(a, b, EXACT: tl.constexpr):
    return tl.dot(a, b, input_precision="ieee" if EXACT else None)


@triton.jit
def _added(a, b, c, EXACT: tl.constexpr):
    return tl.dot(a.to(b.dtype), b, c, input_precision="ieee" if EXACT else None)


@triton.jit
def _bias(BIAS, row, key, m, columns, bias_row, bias_key, BEHIND: tl.constexpr):
    # row and key are given as [M, 1] and [1, N], or as [1, M] and [N, 1]; BEHIND: what there is behind the last of them
    return tl.load(BIAS + row * bias_row + key * bias_key, mask=(row < m) & (key < columns), other=BEHIND)


@triton.jit
def _exponents(product, factor, bias):
    # log2(e) times the scores
    return product * factor + bias.to(tl.float32) * 1.4426950408889634


@triton.jit
def _kept(row, key, head, SEED, keep):
    # head counts the heads of all sequences. row and key are given as [M, 1] and [1, N], or as [1, M] and [N, 1]. The first two rounds
    # are of rows or of keys alone. The compiler sees which weights of a thread share a cell, and computes what they share once.
    w0, w1, w2, w3 = tl.philox(
        tl.load(SEED), (key >> 5 << 3) | (key & 7), (row >> 4 << 3) | (row & 7), head.to(tl.uint32), 0, PHILOX_ROUNDS
    )
    lower = tl.where((key & 16) == 0, w0, w1)
    upper = tl.where((key & 16) == 0, w2, w3)
    word = tl.where((row & 8) == 0, lower, upper)
    number = tl.where((key & 8) == 0, word << 16, word)  # the upper 16 bits count
    return number < (single(keep) * 4294967296.0).to(tl.uint32)


@triton.jit
def _inverse(keep):
    # Where nothing is kept, sums are 0, and so is 0 times this.
    return 1.0 / tl.maximum(single(keep), 0.0000152587890625)  # 2^-16


@triton.jit
def biased_attention_forward(
    Q, K, V, BIAS, OUT, LSE, SEED, heads, m, n, columns, scale, keep, q_batch, q_head, q_row, k_batch, k_head, k_row,
    v_batch, v_head, v_row, bias_batch, bias_head, bias_row, bias_key, o_batch, o_head, o_row,
    BIAS_FIRST: tl.constexpr, ONE: tl.constexpr, DROPOUT: tl.constexpr, DIM: tl.constexpr, V_DIM: tl.constexpr,
    WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, EXACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Blocks of one head follow one another, and find its keys in the cache. One axis: the others end at 65,535.
    # BIAS_FIRST: for a bias that no loop fetches ahead. Its load spreads elements over threads unlike the product, and Triton (3.6,
    # 3.7) follows what stands first: behind the product, it would compute the whole softmax twice, once for each of the two.
    # A bias that is fetched ahead is read behind the product, and its last keys are hidden then: so fewer registers are held.
    blocks = tl.cdiv(m, BLOCK_M)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = pair // heads, pair % heads
    row = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    K += batch * k_batch + head * k_head
    V += batch * v_batch + head * v_head
    BIAS += batch * bias_batch + head * bias_head
    q = _rows(Q + batch * q_batch + head * q_head, q_row, row, m, DIM, WIDTH, EXACT)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, V_WIDTH], tl.float32)
    factor = single(scale) * 1.4426950408889634  # log2(e)
    for at in range(0, BLOCK_N if ONE else n, BLOCK_N):  # one turn, known to the compiler, is no loop
        key = at + tl.arange(0, BLOCK_N)
        k = _rows(K, k_row, key, n, DIM, WIDTH, EXACT)
        v = _rows(V, v_row, key, n, V_DIM, V_WIDTH, EXACT)
        if BIAS_FIRST:
            bias = _bias(BIAS, row[:, None], key[None, :], m, columns, bias_row, bias_key, float("-inf"))
        product = _product(q, tl.trans(k), EXACT)
        if BIAS_FIRST:
            score = _exponents(product, factor, bias)
        else:
            bias = _bias(BIAS, row[:, None], key[None, :], m, columns, bias_row, bias_key, 0.0)
            score = tl.where(key[None, :] < n, _exponents(product, factor, bias), float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        base = tl.where(new == float("-inf"), 0.0, new)  # no key was seen yet
        weight = tl.exp2(score - base[:, None])
        shrunk = tl.exp2(top - base)
        total = total * shrunk + tl.sum(weight, 1)
        if DROPOUT:
            weight = tl.where(_kept(row[:, None], key[None, :], pair, SEED, keep), weight, 0.0)
        out = _added(weight, v, out * shrunk[:, None], EXACT)
        top = new
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)  # a division takes 8 instructions
    if DROPOUT:
        inverse = inverse * _inverse(keep)
    out = out * inverse[:, None]
    _store(OUT + batch * o_batch + head * o_head, o_row, row, m, out, V_DIM, V_WIDTH)
    tl.store(LSE + pair * m + row, tl.where(total == 0.0, float("inf"), top + tl.log2(total)), mask=row < m)


@triton.jit
def biased_attention_backward_q(
    Q, K, V, BIAS, SLOPE, OUT, LSE, DELTA, GRAD_Q, GRAD_K, GRAD_V, GRAD_BIAS, SEED,
    sequences, heads, m, n, columns, grad_columns, each, scale, keep,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bias_batch, bias_head, bias_row, bias_key, s_batch, s_head, s_row, o_batch, o_head, o_row,
    gq_batch, gq_head, gq_row, gk_batch, gk_head, gk_row, gv_batch, gv_head, gv_row, gb_batch, gb_head, gb_row,
    BIAS_GRADIENT: tl.constexpr, ONE: tl.constexpr, WHOLE: tl.constexpr, DROPOUT: tl.constexpr,
    DIM: tl.constexpr, V_DIM: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # A block of queries of one head, in `each` sequences. BIAS_GRADIENT: none; each: written for each sequence; sum: of a
    # program's sequences, which ONE block of keys allows. WHOLE: all queries and all keys are here, so their gradients are, too.
    # DELTA: for each query the sum of SLOPE * OUT, which the other kernel reads. It is the sum of weights times their gradients, too,
    # and where all weights of a query are here, OUT is not read.
    blocks = tl.cdiv(m, BLOCK_M)
    pair = tl.program_id(0) // blocks
    part = (pair // heads).to(tl.int64)
    head = (pair % heads).to(tl.int64)
    row = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    factor = single(scale) * 1.4426950408889634  # log2(e)
    first = pair // heads * each
    GRAD_BIAS += head * gb_head
    if BIAS_GRADIENT == "sum":
        summed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        every = tl.arange(0, BLOCK_N)  # key
        BIAS += head * bias_head  # of all sequences
        bias = _bias(BIAS, row[:, None], every[None, :], m, columns, bias_row, bias_key, float("-inf"))
    # One turn, known to the compiler, is no loop: nothing is kept in registers from one turn to the next.
    for turn in range(tl.minimum(each, sequences - first) if BIAS_GRADIENT == "sum" else 1):
        batch = first.to(tl.int64) + turn
        q = _rows(Q + batch * q_batch + head * q_head, q_row, row, m, DIM, WIDTH, EXACT)
        slope = _rows(SLOPE + batch * s_batch + head * s_head, s_row, row, m, V_DIM, V_WIDTH, EXACT)
        of_rows = (batch * heads + head) * m + row
        lse = tl.load(LSE + of_rows, mask=row < m, other=float("inf"))
        if not ONE:
            out = _rows(OUT + batch * o_batch + head * o_head, o_row, row, m, V_DIM, V_WIDTH, EXACT)
            delta = tl.sum(slope.to(tl.float32) * out.to(tl.float32), 1)
            tl.store(DELTA + of_rows, delta, mask=row < m)
        grad = tl.zeros([BLOCK_M, WIDTH], tl.float32)
        for at in range(0, BLOCK_N if ONE else n, BLOCK_N):
            key = at + tl.arange(0, BLOCK_N)
            k = _rows(K + batch * k_batch + head * k_head, k_row, key, n, DIM, WIDTH, EXACT)
            v = _rows(V + batch * v_batch + head * v_head, v_row, key, n, V_DIM, V_WIDTH, EXACT)
            if BIAS_GRADIENT != "sum":
                of_head = BIAS + batch * bias_batch + head * bias_head
                behind: tl.constexpr = float("-inf") if ONE else 0.0
                bias = _bias(of_head, row[:, None], key[None, :], m, columns, bias_row, bias_key, behind)
            score = _exponents(_product(q, tl.trans(k), EXACT), factor, bias)
            if not ONE:
                score = tl.where(key[None, :] < n, score, float("-inf"))
            weight = tl.exp2(score - lse[:, None])
            if DROPOUT:
                kept = _kept(row[:, None], key[None, :], batch * heads + head, SEED, keep)
            if WHOLE:
                if DROPOUT:
                    passed = tl.where(kept, weight, 0.0)
                    grad_v = _product(tl.trans(passed.to(slope.dtype)), slope, EXACT) * _inverse(keep)
                else:
                    grad_v = _product(tl.trans(weight.to(slope.dtype)), slope, EXACT)
                _store(GRAD_V + batch * gv_batch + head * gv_head, gv_row, key, n, grad_v, V_DIM, V_WIDTH)
            grad_weight = _product(slope, tl.trans(v), EXACT)
            if DROPOUT:
                grad_weight = tl.where(kept, grad_weight, 0.0) * _inverse(keep)
            if ONE:
                delta = tl.sum(weight * grad_weight, 1)
                if not WHOLE:
                    tl.store(DELTA + of_rows, delta, mask=row < m)
            grad_score = weight * (grad_weight - delta[:, None])
            if BIAS_GRADIENT == "sum":
                summed += grad_score
            if BIAS_GRADIENT == "each":
                tl.store(
                    GRAD_BIAS + batch * gb_batch + row[:, None] * gb_row + key[None, :],
                    grad_score.to(GRAD_BIAS.dtype.element_ty), mask=(row[:, None] < m) & (key[None, :] < grad_columns),
                )  # fmt: skip
            grad = _added(grad_score, k, grad, EXACT)
            if WHOLE:
                grad_k = _product(tl.trans(grad_score.to(q.dtype)), q, EXACT) * single(scale)
                _store(GRAD_K + batch * gk_batch + head * gk_head, gk_row, key, n, grad_k, DIM, WIDTH)
        _store(GRAD_Q + batch * gq_batch + head * gq_head, gq_row, row, m, grad * single(scale), DIM, WIDTH)
    if BIAS_GRADIENT == "sum":
        tl.store(
            GRAD_BIAS + part * gb_batch + row[:, None] * gb_row + every[None, :], summed,
            mask=(row[:, None] < m) & (every[None, :] < grad_columns),
        )  # fmt: skip


@triton.jit
def biased_attention_backward_kv(
    Q, K, V, BIAS, SLOPE, LSE, DELTA, GRAD_K, GRAD_V, SEED, heads, m, n, columns, scale, keep,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bias_batch, bias_head, bias_row, bias_key, s_batch, s_head, s_row,
    gk_batch, gk_head, gk_row, gv_batch, gv_head, gv_row,
    DROPOUT: tl.constexpr, DIM: tl.constexpr, V_DIM: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr,
    EXACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # A block of keys of one head. Scores are [keys, queries]: the products that sum over queries take them as they are.
    blocks = tl.cdiv(n, BLOCK_N)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = pair // heads, pair % heads
    key = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    Q += batch * q_batch + head * q_head
    SLOPE += batch * s_batch + head * s_head
    BIAS += batch * bias_batch + head * bias_head
    k = _rows(K + batch * k_batch + head * k_head, k_row, key, n, DIM, WIDTH, EXACT)
    v = _rows(V + batch * v_batch + head * v_head, v_row, key, n, V_DIM, V_WIDTH, EXACT)
    grad_k = tl.zeros([BLOCK_N, WIDTH], tl.float32)
    grad_v = tl.zeros([BLOCK_N, V_WIDTH], tl.float32)
    factor = single(scale) * 1.4426950408889634  # log2(e)
    for at in range(0, m, BLOCK_M):
        row = at + tl.arange(0, BLOCK_M)
        q = _rows(Q, q_row, row, m, DIM, WIDTH, EXACT)
        slope = _rows(SLOPE, s_row, row, m, V_DIM, V_WIDTH, EXACT)
        # Behind the last query an infinite sum leaves weights of 0. Keys behind the last have weights, but are not stored.
        lse = tl.load(LSE + pair * m + row, mask=row < m, other=float("inf"))
        delta = tl.load(DELTA + pair * m + row, mask=row < m, other=0.0)
        bias = _bias(BIAS, row[None, :], key[:, None], m, columns, bias_row, bias_key, 0.0)
        score = _exponents(_product(k, tl.trans(q), EXACT), factor, bias)
        weight = tl.exp2(score - lse[None, :])
        if DROPOUT:
            kept = _kept(row[None, :], key[:, None], pair, SEED, keep)
            grad_v = _added(tl.where(kept, weight, 0.0), slope, grad_v, EXACT)
            grad_weight = tl.where(kept, _product(v, tl.trans(slope), EXACT), 0.0) * _inverse(keep)
        else:
            grad_v = _added(weight, slope, grad_v, EXACT)
            grad_weight = _product(v, tl.trans(slope), EXACT)
        grad_score = weight * (grad_weight - delta[None, :])
        grad_k = _added(grad_score, q, grad_k, EXACT)
    _store(GRAD_K + batch * gk_batch + head * gk_head, gk_row, key, n, grad_k * single(scale), DIM, WIDTH)
    if DROPOUT:
        grad_v = grad_v * _inverse(keep)
    _store(GRAD_V + batch * gv_batch + head * gv_head, gv_row, key, n, grad_v, V_DIM, V_WIDTH)
