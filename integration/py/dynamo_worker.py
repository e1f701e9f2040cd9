"""A Dynamo worker that registers a model and publishes no events, as an engine
beside kvrelay. Arguments: namespace.component.endpoint, block size. Prints its
instance id when it is on record, and runs until stdin closes."""

import asyncio
import os
import sys

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime


async def generate(request):
    yield {"token_ids": [1]}


async def main(path, block_size):
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, os.environ["DYN_DISCOVERY_BACKEND"], "tcp", event_plane="nats")
    endpoint = runtime.endpoint(path)
    config = ModelRuntimeConfig()
    config.total_kv_blocks = 64
    await register_model(
        ModelInput.Tokens, ModelType.Chat, endpoint, "mock", "mock", worker_type=WorkerType.Aggregated,
        kv_cache_block_size=int(block_size), runtime_config=config, skip_model_assets=True,
    )
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    print("registered", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    runtime.shutdown()
    await serving


asyncio.run(main(*sys.argv[1:]))
