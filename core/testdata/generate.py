#!/usr/bin/env python3
"""Writes lane_v1.tsv from an implementation of its own: plain Python, written from the papers.

The other files hold vectors that the functions' authors or their users published. This one holds the answers of
lane_of, shard, checkpoint_name and lock_key themselves. It is checked by core, by SQL and by the daemon's tests; once
released it never changes (HASH-1).
"""
import struct

M64 = (1 << 64) - 1


def fnv1a_64(data):
    value = 14695981039346656037
    for byte in data:
        value = ((value ^ byte) * 1099511628211) & M64
    return value


def murmur3_x86_32(data, seed=0):
    def rotate(value, bits):
        return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF

    def scramble(block):
        return (rotate((block * 0xCC9E2D51) & 0xFFFFFFFF, 15) * 0x1B873593) & 0xFFFFFFFF

    value = seed
    whole = len(data) // 4 * 4
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        value = (rotate(value ^ scramble(block), 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    if len(data) > whole:
        value ^= scramble(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)


def fmix64(value):
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & M64
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & M64
    return value ^ (value >> 33)


def jump(key, buckets):
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & M64
        following = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


# kind, text of the key (for bytea: hex). uuid and integers are written as SQL would accept them; the canonical form
# is worked out here, by Python's own uuid and int.
import uuid

KEYS = [
    ("text", "order-42"), ("text", "s-99"), ("text", ""), ("text", "a"), ("text", "ü"), ("text", "Größe-ß"),
    ("text", "日本語"), ("text", "😀"), ("text", "order-42 "), ("text", "ORDER-42"), ("text", "x" * 100),
    ("text", "42"), ("text", "-7"), ("text", "123e4567-e89b-12d3-a456-426614174000"),
    ("uuid", "123E4567-E89B-12D3-A456-426614174000"), ("uuid", "{00000000-0000-0000-0000-000000000000}"),
    ("uuid", "ffffffffffffffffffffffffffffffff"),
    ("bigint", "42"), ("bigint", "-7"), ("bigint", "9223372036854775807"), ("bigint", "-9223372036854775808"),
    ("int", "42"), ("int", "-2147483648"), ("smallint", "42"), ("smallint", "-32768"), ("smallint", "0"),
    ("bytea", ""), ("bytea", "00"), ("bytea", "ff00fe01"), ("bytea", "6f726465722d3432"),
]


def canonical(kind, text):
    if kind == "uuid":
        return str(uuid.UUID(text)).encode()
    if kind in ("bigint", "int", "smallint"):
        return str(int(text)).encode()
    return bytes.fromhex(text) if kind == "bytea" else text.encode()


with open("lane_v1.tsv", "w", encoding="utf-8") as out:
    out.write("# kind\tkey\tcanonical bytes (hex)\tn\tlane_of\tlane_of consistent\tshard\n")
    for kind, text in KEYS:
        key = canonical(kind, text)
        for n in (1, 2, 8, 10, 16, 1000, 2147483647):
            lane = fnv1a_64(key) % n
            out.write("\t".join(map(str, (kind, text, key.hex(), n, lane, jump(fmix64(fnv1a_64(key)), n), murmur3_x86_32(key) % n))) + "\n")

with open("lock_key_v1.tsv", "w", encoding="utf-8") as out:
    out.write("# projection\tlane\tcheckpoint name\tlock key\n")
    for projection, lane in [("orders", 0), ("orders", 3), ("orders~2", 3), ("airport_departures", 11), ("_x9", 1023)]:
        name = f"{projection}#p{lane}"
        key = struct.unpack("<q", struct.pack("<Q", fnv1a_64(name.encode())))[0]
        out.write(f"{projection}\t{lane}\t{name}\t{key}\n")
