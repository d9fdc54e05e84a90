"""Writes a `dumptxoutset` file (version 2) with the unspent outputs of the blocks from block 0 on.

Written from Bitcoin Core's published format alone, with Python's standard library. Arguments: a file of blocks (each
with the network magic and its length in front, as in Core's `blk*.dat`), the network magic in hexadecimal, and the file
to write. Prints JSON with the figures that Core's `gettxoutsetinfo` has.
"""

import hashlib
import io
import json
import struct
import sys


def sha256d(data):
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def read_compact_size(source):
    first = source.read(1)[0]
    if first < 253:
        return first
    return int.from_bytes(source.read({253: 2, 254: 4, 255: 8}[first]), "little")


def compact_size(number):
    for limit, mark, width in ((253, b"", 1), (1 << 16, b"\xfd", 2), (1 << 32, b"\xfe", 4)):
        if number < limit:
            return mark + number.to_bytes(width, "little")
    return b"\xff" + number.to_bytes(8, "little")


def varint(number):
    """Core's base-128 form: the most significant digit first, and one subtracted from each but the last."""
    digits = [number & 0x7F]
    while number > 0x7F:
        number = (number >> 7) - 1
        digits.append(number & 0x7F | 0x80)
    return bytes(reversed(digits))


def compress_amount(satoshis):
    if satoshis == 0:
        return 0
    exponent = 0
    while satoshis % 10 == 0 and exponent < 9:
        satoshis //= 10
        exponent += 1
    if exponent < 9:
        satoshis, digit = divmod(satoshis, 10)
        return 1 + (satoshis * 9 + digit - 1) * 10 + exponent
    return 1 + (satoshis - 1) * 10 + 9


FIELD = 2**256 - 2**32 - 977


def is_on_curve(x, y):
    return x < FIELD and y < FIELD and (y * y - x**3 - 7) % FIELD == 0


def compress_script(script):
    if len(script) == 25 and script[:3] == b"\x76\xa9\x14" and script[23:] == b"\x88\xac":
        return b"\x00" + script[3:23]
    if len(script) == 23 and script[:2] == b"\xa9\x14" and script[22:] == b"\x87":
        return b"\x01" + script[2:22]
    if len(script) == 35 and script[0] == 33 and script[34:] == b"\xac" and script[1] in (2, 3):
        return script[1:34]
    if len(script) == 67 and script[0] == 65 and script[66:] == b"\xac" and script[1] == 4:
        x, y = script[2:34], script[34:66]
        if is_on_curve(int.from_bytes(x, "big"), int.from_bytes(y, "big")):
            return bytes([4 | y[31] & 1]) + x
    return varint(len(script) + 6) + script


def is_unspendable(script):
    return script[:1] == b"\x6a" or len(script) > 10_000


def read_transaction(block):
    """Returns the txid, the spent outpoints and the outputs of the next transaction, which has no witness."""
    begin = block.tell()
    block.read(4)
    inputs = []
    for _ in range(read_compact_size(block)):
        inputs.append((block.read(32), struct.unpack("<I", block.read(4))[0]))
        block.read(read_compact_size(block))
        block.read(4)
    outputs = []
    for _ in range(read_compact_size(block)):
        satoshis = struct.unpack("<q", block.read(8))[0]
        outputs.append((satoshis, block.read(read_compact_size(block))))
    block.read(4)
    end = block.tell()
    block.seek(begin)
    return sha256d(block.read(end - begin)), inputs, outputs


def apply_block(block, height, coins):
    """Applies a block to the unspent coins; returns the hash of the block. The outputs of block 0 are no coins."""
    block_hash = sha256d(block.read(80))
    for index in range(read_compact_size(block)):
        txid, inputs, outputs = read_transaction(block)
        if index > 0:
            for outpoint in inputs:
                del coins[outpoint]
        for vout, (satoshis, script) in enumerate(outputs):
            if height > 0 and not is_unspendable(script):
                coins[txid, vout] = (height << 1 | (index == 0), satoshis, script)
    return block_hash


def main(blocks_path, magic, to_path):
    coins, height, block_hash = {}, -1, b""
    with open(blocks_path, "rb") as blocks:
        while head := blocks.read(8):
            height += 1
            assert head[:4].hex() == magic, "another network, or no file of blocks"
            block = blocks.read(struct.unpack("<I", head[4:])[0])
            block_hash = apply_block(io.BytesIO(block), height, coins)
    transactions, of_set = {}, hashlib.sha256()
    for (txid, vout), (code, satoshis, script) in sorted(coins.items()):
        coin = compact_size(vout) + varint(code) + varint(compress_amount(satoshis)) + compress_script(script)
        transactions.setdefault(txid, []).append(coin)
        of_set.update(txid + struct.pack("<IIq", vout, code, satoshis) + compact_size(len(script)) + script)
    with open(to_path, "wb") as to:
        to.write(b"utxo\xff" + struct.pack("<H", 2) + bytes.fromhex(magic) + block_hash)
        to.write(struct.pack("<Q", len(coins)))
        for txid, of_transaction in transactions.items():
            to.write(txid + compact_size(len(of_transaction)) + b"".join(of_transaction))
    said = {
        "height": height,
        "bestblock": block_hash[::-1].hex(),
        "transactions": len(transactions),
        "txouts": len(coins),
        "total_satoshis": sum(satoshis for _, satoshis, _ in coins.values()),
        "hash_serialized_3": hashlib.sha256(of_set.digest()).digest()[::-1].hex(),
    }
    print(json.dumps(said))


main(*sys.argv[1:])
