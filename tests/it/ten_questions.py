"""Asks a running instance with the client that `openapi-python-client` generated from `schemas/openapi.json`.

The argument is JSON with the address, a token and what is known of the scene. Each question prints one line.
"""

import json
import sys
from http import HTTPStatus

from generated import AuthenticatedClient
from generated.api.chain import get_block, get_chain
from generated.api.commands import post_commands
from generated.api.conflicts import get_conflicts, get_history
from generated.api.outputs import get_output, post_outputs_batch
from generated.api.transactions import (
    get_previous_outputs,
    get_raw_transaction,
    get_transaction,
    list_transactions,
    post_transactions,
    post_transactions_batch,
)
from generated.models import CommandsRequest, OutputsRequest, Problem, SubmitRequest, TransactionsRequest
from generated.types import UNSET

known = json.loads(sys.argv[1])
client = AuthenticatedClient(
    base_url=known["url"], token=known["token"], timeout=60, raise_on_unexpected_status=True
)


def ask(question, operation, *args, status=HTTPStatus.OK, **parameters):
    """Asks, compares the status and returns the response."""
    response = operation.sync_detailed(*args, client=client, **parameters)
    assert response.status_code == status, f"{question}: {response.status_code} {response.content}"
    print(question)
    return response


chain = ask("chain", get_chain).parsed
assert chain.height > 0 and chain.hash_, chain

shown = ask("transaction", get_transaction, known["mined"]).parsed
assert shown.txid == known["mined"] and shown.state == "live" and shown.tx is UNSET, shown

some = ask("some fields", get_transaction, known["mined"], fields="fee,txInpoints").parsed
assert some.txid is UNSET and some.fee == 0 and some.tx_inpoints.parent_tx_hashes == [known["parent"]], some

raw = ask("raw transaction", get_raw_transaction, known["child"], format_="extended")
assert raw.parsed.payload.read().hex() == known["raw"]

previous = ask("previous outputs", get_previous_outputs, known["child"]).parsed
assert len(previous.previous_outputs) == 1 and previous.previous_outputs[0].satoshis > 0, previous

spent = ask("output", get_output, known["parent"], 0).parsed
assert spent.status == "SPENT" and spent.spender.txid == known["mined"], spent

outpoints = [f"{known['parent']}:0", "junk", f"{known['child']}:6"]
outputs = ask("batch of outputs", post_outputs_batch, body=OutputsRequest(outpoints=outpoints)).parsed.outputs
assert [getattr(output, "status", None) for output in outputs] == ["SPENT", None, "OK"], outputs
assert outputs[1].error.status == 400, outputs

txids = [known["mined"], "11" * 32, known["loser"]]
found = ask("batch of transactions", post_transactions_batch, body=TransactionsRequest(txids=txids)).parsed
states = [one and one.state for one in found.transactions]
assert states == ["live", None, "conflicting"], found

conflicts = ask("conflicts", get_conflicts, known["loser"]).parsed
assert conflicts.counter_conflicting.txids == [known["mined"], known["child"]], conflicts

history = ask("history", get_history, known["loser"]).parsed.history
assert any(line.what.startswith("contested by") for line in history), history

block = ask("block", get_block, f"height:{chain.height}").parsed.blocks[0]
assert block.hash_ == chain.hash_ and block.longest_chain, block

# The generator has no parser for lines of JSON.
client.raise_on_unexpected_status = False
lines = ask("conflicting transactions", list_transactions, conflicting=True).content.splitlines()
client.raise_on_unexpected_status = True
assert [json.loads(line)["txid"] for line in lines] == [known["loser"]], lines

submitted = ask("submit", post_transactions, body=SubmitRequest(transactions=[known["submit"]]), wait="live").parsed
assert submitted.transactions[0].txid == known["submitted"], submitted
assert submitted.transactions[0].outcome.status == "live", submitted

action = {"freeze": {"outpoint": f"{known['submitted']}:0"}}
commands = CommandsRequest.from_dict({"commands": [{"id": "0c" * 16, "action": action}]})
results = ask("command", post_commands, body=commands).parsed.commands
assert results[0].result == "applied", results

absent = ask("absent transaction", get_transaction, "12" * 32, status=HTTPStatus.NOT_FOUND).parsed
assert isinstance(absent, Problem) and absent.status == 404 and "12" * 32 in absent.detail, absent

client = AuthenticatedClient(base_url=known["url"], token="ab" * 16)
refused = ask("unknown token", get_chain, status=HTTPStatus.UNAUTHORIZED).parsed
assert isinstance(refused, Problem), refused
