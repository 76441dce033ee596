"""A worker of our own: one process that serves one replica by the Open Inference Protocol v2, in dynamic batches.

    arguments ──▶ process ──▶ server ──▶ replica ──▶ batching ──▶ engine thread ──▶ an Engine
     (stdlib)     signals      HTTP       state      the queue      one call at     standin_engine
                                 │                                   a time         torch_engine (extra rl)
                                wire: requests and answers                          onnx_engine (extra onnx)

    Engine      load() -> Signature; warm_up(batch); run(Tensors) -> Tensors; facts() -> Facts; offload(); resume()
    Batcher     answer(Waiting) -> Answer; change(Limits); idle()
    Replica     run(); answer(inputs, ...) -> Answer; change_limits(); drain(); offload(); resume(); status() -> Status
    SwapHooks   offload and resume for training loops that serve nothing

Everything but the engine's own calls runs on one event loop, so a change of limits is whole or not there. The batch
and delay change between two batches; the share of the GPU cannot: it is read by the driver when the process starts, and
the worker only reports what it got (`sm_count`), so that the agent can prove it before any request comes.
"""
