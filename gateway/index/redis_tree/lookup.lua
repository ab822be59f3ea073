#!lua flags=no-writes
-- Lookup: counts the leading blocks of a prompt for all workers in one walk along its edges.
-- KEYS[1] names the tree; ARGV: packed hashes, most edges to visit, the workers left from a call before ('' in
-- the first). Answers: blocks walked, the workers left ('' at the end), first block of an edge that does not
-- decode ('' where there is none; the walk ends before it), then worker and depth in turn.
local tree, hashes, most, alive = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local sub, unpack_, call = string.sub, struct.unpack, redis.call
local num, at, is_first = #hashes / 8, 0, alive == ''
local slots, depths = {}, {}

local function ended(slot, depth)
  if depth > 0 or not is_first then
    slots[#slots + 1], depths[#depths + 1] = slot, depth
  end
end

-- Counts the blocks of an edge that equal the prompt's: equal at one position is equal before it.
local function match(edge, size)
  local low, high = 1, math.min(size, num - at)
  local middle = high
  while low < high do
    if sub(edge, middle * 8 - 1, middle * 8 + 6) == sub(hashes, (at + middle) * 8 - 7, (at + middle) * 8) then
      low = middle
    else
      high = middle - 1
    end
    middle = math.ceil((low + high) / 2)
  end
  return low
end

-- Returns the slots among those alive that hold the first `count` blocks of an edge too; the others end in it.
local function narrowed(edge, size, num_full, num_parts, full, count)
  local leading, order = {}, {}
  for i = 1, num_full * 2, 2 do
    local slot = sub(full, i, i + 1)
    leading[slot], order[#order + 1] = size, slot
  end
  local from = 7 + size * 8 + num_full * 2
  for _ = 1, num_parts do
    local slot, depth, width = sub(edge, from, from + 1), unpack_('<HB', edge, from + 2)
    leading[slot], order[#order + 1], from = depth, slot, from + 5 + width
  end
  if not is_first or at > 0 then
    order = {}
    for i = 1, #alive, 2 do
      order[#order + 1] = sub(alive, i, i + 1)
    end
  end
  local left = {}
  for _, slot in ipairs(order) do
    local depth = leading[slot] or 0
    if depth >= count then
      left[#left + 1] = slot
    else
      ended(slot, at + depth)
    end
  end
  return left
end

local visited, broken = 0, ''
while at < num and visited < most do
  local head = sub(hashes, at * 8 + 1, at * 8 + 8)
  local edge = redis.pcall('GET', tree .. 'e' .. head)
  if not edge then
    break
  end
  if type(edge) ~= 'string' or #edge < 16 or sub(edge, 7, 14) ~= head then
    broken = head
    break
  end
  local size, num_full, num_parts = unpack_('<HHH', edge)
  local count, full = match(edge, size), sub(edge, 7 + size * 8, 6 + size * 8 + num_full * 2)
  if #full < num_full * 2 then
    broken = head
    break
  end
  if full == '' or full ~= alive then
    local is_good, left = pcall(narrowed, edge, size, num_full, num_parts, full, count)
    if not is_good then
      broken = head
      break
    end
    if #left == 0 then
      alive = ''
      break
    end
    alive = table.concat(left)
  end
  at, visited = at + count, visited + 1
end
if visited < most or at == num then -- no cursor: the slots left end here
  for i = 1, #alive, 2 do
    ended(sub(alive, i, i + 1), at)
  end
  alive = ''
end
local answer = { at, alive, broken }
if #slots > 0 then
  local time = call('TIME')
  local now = time[1] * 1000 + time[2] / 1000
  for first = 1, #slots, 1000 do
    local last = math.min(first + 999, #slots)
    local known = call('HMGET', tree .. 's', unpack(slots, first, last))
    for i = first, last do
      local worker = known[i - first + 1]
      if worker and worker:byte(9) == 1 and unpack_('<d', worker) > now then
        answer[#answer + 1], answer[#answer + 2] = sub(worker, 10), depths[i]
      end
    end
  end
end
return answer
