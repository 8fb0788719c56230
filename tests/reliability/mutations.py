"""Bytes that are almost right: what an accident or a stranger makes of a file."""

TOKENS = [
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b",",
    b";",
    b"\t",
    b'"',
    b'""',
    b"nan",
    b"inf",
    b"-1",
    b"1e999",
    b"0x1p-3",
    b"1_0",
    b"\xff",
]
TOKENS += [
    b"\xef\xbb\xbf",
    b"0.5",
    b"5e-324",
    b" ",
    b"{",
    b"}",
    b"[" * 50,
    b"2147483648",
    b"-9223372036854775808",
    b"\x80",
]


def mutate(rng, seeds):
    """Change one of the seeds in one to a few places."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.randrange(256)
            case 2:
                del data[at : at + rng.choice((1, 1, 4, 100))]
            case 3:
                data[at:at] = rng.choice(TOKENS)
            case 4:
                data[at : at + rng.randrange(1, 9)] = rng.choice(TOKENS)
            case 5:
                part = bytes(data[at : at + rng.randrange(1, 60)])
                data[at:at] = part * rng.choice((1, 1, 1, 20))
            case 6:
                other = rng.choice(seeds)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case 7:
                data[at : at + 8] = rng.choice((2**31, 2**32 - 1, 2**63, 2**64 - 1, 0)).to_bytes(8, "little")
    return bytes(data)
