#!/usr/bin/env bash
# FastAPI finds the fault in a request and then cannot say so: 500 in place of 422.
#
# Versions: fastapi 0.165.0, starlette 1.10.0, pydantic 2.14.4, httpx 0.28.1.
# Guess: NaN passes a field with ge=0 and le=100, because comparisons with NaN are false.
# Seen: pydantic refuses it. But the refusal quotes the input, NaN has no form in JSON, and FastAPI's handler of
#   validation errors raises ValueError: the client gets 500 "Internal Server Error" for a fault of its own. In a query
#   the same NaN is refused with 422, because there the input is the text "nan".
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet fastapi==0.165.0 starlette==1.10.0 pydantic==2.14.4 httpx==0.28.1

"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys
from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field


class Share(BaseModel):
    percent: float = Field(ge=0, le=100)


app = FastAPI()


@app.post("/share")
def post(share: Share) -> dict[str, float]:
    return {"percent": share.percent}


@app.get("/share")
def get(percent: Annotated[float, Query(ge=0, le=100)]) -> dict[str, float]:
    return {"percent": percent}


client = TestClient(app, raise_server_exceptions=False, headers={"Content-Type": "application/json"})
answers = {
    "body 101": client.post("/share", content='{"percent": 101}').status_code,
    "body NaN": client.post("/share", content='{"percent": NaN}').status_code,
    "query nan": client.get("/share?percent=nan").status_code,
}
print(answers)
expected = {"body 101": 422, "body NaN": 500, "query nan": 422}
sys.exit(0 if answers == expected else "changed: NaN is refused in words now")
PYTHON
