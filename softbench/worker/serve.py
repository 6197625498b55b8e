"""A worker's loop: it receives a request, handles it, and sends the reply. If it crashes or hangs, no other worker is affected."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from softbench.core import messages
from softbench.core.channel import Channel
from softbench.core.json import to_json
from softbench.core.messages import CheckCases, Described, Probed, Reply, Request, request_from_json
from softbench.ops import declaration
from softbench.ops.registry import numerics
from softbench.plugins.source import PluginSource
from softbench.problems.load import layouts_of, load
from softbench.worker.failures import failure
from softbench.worker.garbage_collection import paused, seldom
from softbench.worker.guarding import audit
from softbench.worker.judged.calls import JudgedCalls
from softbench.worker.machine_probe import probe
from softbench.worker.server import Server

SOON_SECONDS = 0.2
"""The judge's next request comes within this time."""
JUDGE_REQUESTS = (
    *(messages.ConfineProcess, messages.ShareOutputs, messages.MapInputs),
    *(messages.QueueCalls, messages.MakeCalls, messages.ReleaseOutputs),
)


def serve(channel: Channel) -> None:
    """Reply to requests until the parent closes the socket."""
    server = Server()
    judged = JudgedCalls(server, channel.received)
    while (data := channel.receive()) is not None:
        request = request_from_json(data)
        of_judge = isinstance(request, JUDGE_REQUESTS)
        with paused() if isinstance(request, messages.MakeCalls) else nullcontext():  # the judge's clock runs
            try:
                reply = to_json(judged.handle(request) if of_judge else handle(server, request))
            except Exception as error:  # the boundary of a request: an exception of a plugin becomes a reply
                reply = to_json(failure(request.op, error, server.source))
            channel.send(reply)
        if isinstance(request, messages.QueueCalls):
            channel.wait_busily(SOON_SECONDS)  # a process that sleeps answers some .2 ms later, and the judge's clock would run
        if isinstance(request, messages.TimeBatch):
            server.read_telemetry()


def handle(server: Server, request: Request[Any]) -> Reply:
    """The reply to a request. Exceptions of the backend pass through."""
    match request:
        case messages.ProbeMachine():
            return Probed(probe())
        case messages.LoadOperation(file, cases, layouts):
            server.source = PluginSource("file", "", file, file)  # an error in its code names the line
            operation = load(file, cases, every=not layouts, layouts=layouts)
            return Described(declaration.to_json(operation), layouts_of(operation))
        case messages.LoadSource(source, device, name, operations, layouts, problems):
            if not server.confined:
                audit.close()
            with seldom():
                return server.load(PluginSource(**source), device, name, operations, layouts, problems)
        case messages.ListUnsupported(names, cases):
            return server.unsupported(names, cases)
        case messages.BuildCase(case, seed):
            return server.build(case, seed)
        case messages.CheckOutputs():
            return server.check()
        case messages.ListCheckCases(operation, files):
            for file in files:
                load(file)
            return CheckCases(
                [(item.name, item.direction, item.free_bytes > 0, item.dtype) for item in numerics(operation).check_cases(operation)]
            )
        case messages.RunCheckCase(operation, name, direction, dtype, seed):
            return server.run_check_case(operation, name, direction, dtype, seed)
        case messages.CompareRows():
            return server.compare_rows(request)
        case messages.InspectCase(case, seed):
            return server.inspect(case, seed)
        case messages.RenewInputs(l2):
            return server.renew(l2)
        case messages.TimeBatch(warmup_ms, batch_ms, timer, l2):
            return server.time(warmup_ms, batch_ms, timer, l2)
        case messages.VerifyOutputs():
            return server.verify()
        case messages.MeasureProducts():
            return server.measure_products()
        case messages.TimeHost(batch_ms, l2):
            return server.time_host(batch_ms, l2)
        case messages.TimeUsersCall(batch_ms, beside):
            return server.time_users_call(batch_ms, beside and (PluginSource(**beside[0]), beside[1]))
        case messages.StartTrace(l2):
            return server.start_trace(l2)
        case messages.TraceCalls(batch_ms, l2):
            return server.trace_calls(batch_ms, l2)
        case messages.EndProfile():
            return server.end_profile()
        case messages.Release():
            return server.release()
    raise TypeError(f"unknown request {request}")
