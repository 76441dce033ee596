-- Written by plimsoll-agent; changes are lost. Runs within HAProxy (Lua 5.3) and counts there what HAProxy itself does not:
--
--     filter lua.meter                                of backends of language models: their answers while they pass,
--                                                     by the same rules as agents/router/streams.py
--     http-after-response set-var(…) lua.judge        failures of replicas, what they refuse by 429, and clients that left
--                                                     before an answer
--     show meters                                     on the runtime socket: a line of counts for each backend

local EVENT_LIMIT = 64 * 1024
local TAIL_BYTES = 16 * 1024
local MAX_TOKENS = 1000000
local STRIKES = 3
local BUSY = 429
local NAMES = { "in_slo", "tokens", "unmeasured", "failed", "gone", "left" }
local CONTENTS = { "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio" }
local TYPED = { "response%.", "message_", "content_block_", "transcript%.", "speech%." }
local DELTAS = { "text", "thinking", "partial_json", "citation" }

local counts = {}
local strikes = {}

local function now_ms(txn)
  return txn.f:date(0, "ms")
end

local function note(backend, name, amount)
  local mine = counts[backend]
  if mine == nil then
    mine = {}
    for _, each in ipairs(NAMES) do mine[each] = 0 end
    counts[backend] = mine
  end
  mine[name] = mine[name] + (amount or 1)
end

-- Whether a field holds text, or a list or an object, that is not empty. Quotes within texts have backslashes.
local function is_filled(data, field)
  local name = '"' .. field .. '"%s*:%s*'
  return data:find(name .. '"[^"]') ~= nil or data:find(name .. "[%[{]%s*[^%]}%s]") ~= nil
end

local function is_any_filled(data, fields)
  for _, each in ipairs(fields) do
    if is_filled(data, each) then return true end
  end
  return false
end

local function stated(data, field)
  return tonumber(data:match('.*"' .. field .. '"%s*:%s*(%d+)'))
end

-- Embeddings, scores and counted prompts have no tokens of their own.
local function has_prompt_alone(data)
  return data:find('"usage"%s*:%s*{') ~= nil or stated(data, "input_tokens") ~= nil
end

local function kind_of(event, data)
  for _, start in ipairs(TYPED) do
    local kind = event:match("event:%s*(" .. start .. "[%w_.]+)") or data:match('"type"%s*:%s*"(' .. start .. '[%w_.]+)"')
    if kind then return kind end
  end
  return nil
end

local function has_chosen(data)
  if data:find('"choices"%s*:%s*%[%s*%]') then return false end
  local is_over = data:find('"finish_reason"%s*:%s*"') ~= nil
  if is_any_filled(data, CONTENTS) or is_filled(data, "text") then return true end
  local is_silent = data:find('"text"%s*:%s*""') or (data:find('"content"%s*:%s*""') and not data:find('"role"%s*:%s*"'))
  return is_silent ~= nil and is_silent ~= false and not is_over
end

-- Whether the server tells an error: in any words, by an object of that kind, or as the reason of an answer's end. Within
-- typed events stand errors of single tools, too.
local function has_failed(event, data, kind)
  if kind == "response.failed" or event:find("^event:%s*error") or data:find('"type"%s*:%s*"error"') then return true end
  if kind then return false end
  return data:find('"error"%s*:%s*[{"]') or data:find('"object"%s*:%s*"error"') or data:find('"finish_reason"%s*:%s*"error"')
end

-- For how many answers an event has content.
local function contents_of(data)
  if not has_chosen(data) then return 0 end
  local _, deltas = data:gsub('"delta"%s*:%s*{', "")
  local _, texts = data:gsub('"text"%s*:%s*"', "")
  return math.max(1, deltas, deltas == 0 and texts or 0)
end

-- What an event says: nothing where it is of no API that is known here, or a comment, or the end.
local function facts_of(event)
  if event:find("^error:") then return { failed = true } end
  local data = event:match("^data:(.*)$") or event:match("\ndata:(.*)$")
  if data == nil or not (data:find("^%s*{") or event:find("^event:%s*error")) then return nil end
  local is_chosen = data:find('"choices"%s*:%s*%[')
  local kind = not is_chosen and kind_of(event, data) or nil
  if has_failed(event, data, kind) then return { failed = true } end
  if is_chosen then
    local index = tonumber(data:match('"choices"%s*:%s*%[%s*{[^{}]*"index"%s*:%s*(%d+)')) or 0
    local contents = contents_of(data)
    return { contents = contents, tokens = stated(data, "completion_tokens"), answers = math.max(1 + index, contents) }
  end
  if kind == nil then return nil end
  if kind:find("%.delta$") then
    return { contents = (is_filled(data, "delta") or is_filled(data, "audio")) and 1 or 0 }
  end
  if kind == "content_block_delta" then return { contents = is_any_filled(data, DELTAS) and 1 or 0 } end
  if kind == "content_block_start" or kind == "response.output_item.added" then
    local is_call = data:find('"type"%s*:%s*"[%w_]*_call"') or data:find('"type"%s*:%s*"[%w_]*tool_use"')
    return { contents = is_call and 1 or 0 }
  end
  if kind == "message_start" then return {} end
  return { tokens = stated(data, "output_tokens") }
end

local Meter = {}
Meter.id = "meter"
Meter.flags = filter.FLT_CFG_FL_HTX
Meter.__index = Meter

function Meter:new()
  return setmetatable({ rest = "", events = 0, answers = 1 }, Meter)
end

function Meter:start_analyze(txn, channel)
  if self.came_ms == nil then self.came_ms = now_ms(txn) end
  if channel:is_resp() then filter.register_data_filter(self, channel) end
end

function Meter:http_headers(txn, message)
  if not message.channel:is_resp() then return end
  local status = tonumber(message:get_stline().code)
  self.is_judged = status >= 200 and status < 500 and status ~= BUSY and txn:get_var("txn.is_stream") ~= nil
  self.is_error = status >= 400
  self.backend = txn.f:be_name()
  self.slo_ms, self.itl_us = txn:get_var("txn.slo_ms") or 0, txn:get_var("txn.itl_us") or 0
  local kinds = message:get_headers()["content-type"]
  self.is_stream = kinds ~= nil and kinds[0]:lower():find("text/event-stream", 1, true) == 1
end

-- How the tokens of a stream begin: nearly all of them alike, so that most are known by that and by stating no usage.
local function beginning_of(event)
  if event:sub(1, 6) == "event:" then return event:match("^[^\n]*\n") end
  local _, stop = event:find('"content"%s*:%s*"')
  if stop == nil then _, stop = event:find('"text"%s*:%s*"') end
  return stop and event:sub(1, stop)
end

function Meter:note_tokens_of(contents, at_ms)
  self.first_ms = self.first_ms or at_ms
  self.last_ms = at_ms
  self.events = self.events + contents
end

-- Whether an event is one more like the last one with tokens: the last of all may have the usage, or a failure, too.
function Meter:is_alike(event)
  local beginning = self.beginning
  if not beginning or self.is_cut or event:sub(1, #beginning) ~= beginning or event:byte(#beginning + 1) == 34 then
    return false
  end
  return not (event:find('"finish_reason"%s*:%s*"', #beginning) or event:find('"usage"%s*:%s*{', #beginning))
end

function Meter:take(event, at_ms)
  if self:is_alike(event) then return self:note_tokens_of(self.contents, at_ms) end
  local facts = nil
  if self.is_cut then
    -- The beginning of a longer one is gone: what its end says of the usage still holds.
    self.is_cut = false
    self.stated = stated(event, "output_tokens") or stated(event, "completion_tokens") or self.stated
  else
    facts = facts_of(event)
  end
  if facts == nil then return end
  self.is_known = true
  self.has_failed = self.has_failed or facts.failed
  self.answers = math.max(self.answers, facts.answers or 1)
  self.stated = facts.tokens or self.stated
  if (facts.contents or 0) > 0 then
    self:note_tokens_of(facts.contents, at_ms)
    self.beginning, self.contents = beginning_of(event), facts.contents
  end
end

function Meter:http_payload(txn, message)
  if not self.is_judged or not message.channel:is_resp() then return end
  local piece = message:body()
  if piece == nil or piece == "" then return end
  if piece:find("\r", 1, true) then piece = piece:gsub("\r", "") end
  if not self.is_stream then
    self.rest = (self.rest .. piece):sub(-TAIL_BYTES)
    return
  end
  local at_ms, start = now_ms(txn), 1
  local text = self.rest .. piece
  local first, last = text:find("\n\n", math.max(1, #self.rest), true)
  while first do
    self:take(text:sub(start, first - 1), at_ms)
    start = last + 1
    first, last = text:find("\n\n", start, true)
  end
  self.rest = text:sub(start)
  if #self.rest > EVENT_LIMIT then
    self.rest, self.is_cut = self.rest:sub(-TAIL_BYTES), true
  end
end

function Meter:note_tokens(took_ms, tokens)
  note(self.backend, "tokens", tokens)
  local later_ms = self.itl_us / 1000 * math.max(0, tokens - 1)
  if took_ms - later_ms <= self.slo_ms then note(self.backend, "in_slo") end
end

function Meter:finish_stream(took_ms)
  if self.has_failed then
    note(self.backend, "failed")
    return
  end
  local tokens = math.min(MAX_TOKENS, self.stated or self.events)
  if self.first_ms == nil then
    if self.is_known then
      self:note_tokens(took_ms, tokens)
    else
      note(self.backend, "unmeasured")
    end
    return
  end
  note(self.backend, "tokens", tokens)
  local gaps = tokens / self.answers - 1
  local is_steady = gaps < 1 or 1000 * (self.last_ms - self.first_ms) / gaps <= self.itl_us
  if self.first_ms - self.came_ms <= self.slo_ms and is_steady then note(self.backend, "in_slo") end
end

function Meter:http_end(txn, message)
  if not self.is_judged or not message.channel:is_resp() then return end
  self.is_judged = false
  local took_ms = now_ms(txn) - self.came_ms
  if self.is_stream then
    self:finish_stream(took_ms)
    return
  end
  local tokens = stated(self.rest, "output_tokens") or stated(self.rest, "completion_tokens")
  if tokens == nil then tokens = (self.is_error or has_prompt_alone(self.rest)) and 0 or 1 end
  self:note_tokens(took_ms, math.min(MAX_TOKENS, tokens))
end

-- Without the end of the message before it: somebody left in the middle.
function Meter:end_analyze(txn, channel)
  if not self.is_judged or not channel:is_resp() then return end
  self.is_judged = false
  local waited_ms = (self.first_ms or now_ms(txn)) - self.came_ms
  note(self.backend, waited_ms < self.slo_ms and "gone" or "left")
end

core.register_filter("meter", Meter, function(meter) return meter end)

-- Three failures in a row, without a good answer between them, send a replica out until its next good check. The last one
-- of a service stays in: without it every request would fail for certain.
local function strike(backend_name, name)
  local backend = core.backends[backend_name]
  local server = backend and backend.servers[name]
  if server == nil then return end
  local stats, address = server:get_stats(), server:get_addr()
  local good = 0
  for _, class in ipairs({ "hrsp_2xx", "hrsp_3xx", "hrsp_4xx" }) do good = good + (tonumber(stats[class]) or 0) end
  local place = backend_name .. "/" .. name
  local before = strikes[place]
  if before == nil or before.address ~= address or before.good ~= good then before = { count = 0 } end
  strikes[place] = { address = address, good = good, count = before.count + 1 }
  if before.count + 1 >= STRIKES and backend:get_srv_act() > 1 then
    strikes[place] = nil
    server:check_force_down()
  end
end

core.register_fetches("judge", function(txn)
  local status = txn.f:status()
  if status == 400 then
    local waited_ms = now_ms(txn) - (txn:get_var("txn.came_ms") or 0)
    note(txn.f:be_name(), waited_ms < (txn:get_var("txn.slo_ms") or 0) and "gone" or "left")
  elseif status == BUSY then
    note(txn.f:be_name(), "failed")
  elseif status ~= 503 and txn.f:srv_name() then
    strike(txn.f:be_name(), txn.f:srv_name())
  end
  return ""
end)

core.register_cli({ "show", "meters" }, "show meters: what meter.lua counted, by backend", function(applet)
  for backend, mine in pairs(counts) do
    local line = backend
    for _, name in ipairs(NAMES) do line = line .. " " .. string.format("%d", mine[name]) end
    applet:send(line .. "\n")
  end
end)
