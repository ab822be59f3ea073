#!lua
-- Applies changes to the tree, all or none. KEYS[1] names the tree, ARGV[2] is its age as the writer knows it (at
-- another age no slot is known), ARGV[1] holds operations one after another:
--   H slot(2) mode(1) head(8) position(2) hash(8) count(2) hashes   the slot holds a run, which lies behind the
--                                      block (mode 1) or begins with the block (mode 2) at head and position
--   R slot(2) head(8) count(2) positions(1 each)                    the slot releases these, the last first
--   S slot(2) count(2)                                              removes a dead slot from `count` edges
-- Answers the location of each block of each H: (head(8) position(2) count(2)) in turn; unknown slots, of
-- which nothing was done; the number of edges that the slots of S have left.
local tree, ops = KEYS[1], ARGV[1]
local sub, byte, char, unpack_, pack_ = string.sub, string.byte, string.char, struct.unpack, struct.pack
local call = redis.call
local MOST = 256
local edges, placed, gone, entered, left = {}, {}, {}, {}, 0

local function decoded(value)
  local size, num_full, num_parts = unpack_('<HHH', value)
  local depths, maps = {}, {}
  local from = 7 + size * 8
  for i = from, from + num_full * 2 - 2, 2 do
    local low, high = byte(value, i, i + 1)
    depths[low + high * 256] = size
  end
  from = from + num_full * 2
  for _ = 1, num_parts do
    local slot, depth, width = unpack_('<HHB', value, from)
    depths[slot] = depth
    if width > 0 then
      local map = {}
      for i = 0, width * 8 - 1 do
        if bit.band(byte(value, from + 5 + math.floor(i / 8)), bit.lshift(1, i % 8)) ~= 0 then
          map[i] = true
        end
      end
      maps[slot] = map
    end
    from = from + 5 + width
  end
  return { size = size, hashes = sub(value, 7, 6 + size * 8), depths = depths, maps = maps }
end

-- An edge that does not decode counts as absent.
local function load_edge(head)
  local edge = edges[head]
  if edge ~= nil then
    return edge
  end
  local value, is_good = redis.pcall('GET', tree .. 'e' .. head), false
  if type(value) == 'string' then
    is_good, edge = pcall(decoded, value)
    is_good = is_good and sub(edge.hashes, 1, 8) == head and #edge.hashes == edge.size * 8
  end
  edges[head] = is_good and edge
  return edges[head]
end

-- A bitmap is kept where there is a hole.
local function set_map(edge, slot, map)
  local depth, count = 0, 0
  while map[depth] do
    depth = depth + 1
  end
  for _ in pairs(map) do
    count = count + 1
  end
  edge.depths[slot] = depth
  edge.maps[slot] = count > depth and map or nil
  return count
end

local function map_of(edge, slot)
  local map = edge.maps[slot]
  if not map then
    map = {}
    for i = 0, (edge.depths[slot] or 0) - 1 do
      map[i] = true
    end
  end
  return map
end

local function note(slot, head, verb)
  local changes = entered[slot]
  if not changes then
    changes = {}
    entered[slot] = changes
  end
  changes[head] = verb
end

local function enter(edge, head, slot, position, count)
  local depth = edge.depths[slot]
  edge.is_changed = true
  if not depth then
    note(slot, head, 'SADD')
  end
  depth = depth or 0
  if position <= depth and not edge.maps[slot] then
    edge.depths[slot] = math.max(depth, position + count)
    return
  end
  local map = map_of(edge, slot)
  for i = position, position + count - 1 do
    map[i] = true
  end
  set_map(edge, slot, map)
end

local function forget(edge, head, slot)
  edge.depths[slot], edge.maps[slot], edge.is_changed = nil, nil, true
  note(slot, head, 'SREM')
end

local function leave(edge, head, slot, positions)
  local depth, from = edge.depths[slot], 1
  edge.is_changed = true
  if not edge.maps[slot] then
    while from <= #positions and byte(positions, from) == depth - 1 do
      depth, from = depth - 1, from + 1
    end
    edge.depths[slot] = depth
  end
  if from <= #positions then
    local map = map_of(edge, slot)
    for i = from, #positions do
      map[byte(positions, i)] = nil
    end
    depth = set_map(edge, slot, map)
  end
  if depth == 0 then
    forget(edge, head, slot)
  end
end

local function match(edge, position, run, done, num)
  local low, high = 0, math.min(num - done, edge.size - position)
  local middle = high
  while low < high do
    local own, asked = (position + middle) * 8, (done + middle) * 8
    if sub(edge.hashes, own - 7, own) == sub(run, asked - 7, asked) then
      low = middle
    else
      high = middle - 1
    end
    middle = math.ceil((low + high) / 2)
  end
  return low
end

-- Counts the blocks from `done` on that begin no edge; the first does not.
local function fresh(run, done, num)
  local keys = {}
  for i = done + 1, num - 1 do
    local head = sub(run, i * 8 + 1, i * 8 + 8)
    if edges[head] then
      num = i
      break
    end
    keys[#keys + 1] = tree .. 'e' .. head
  end
  for first = 1, #keys, 1000 do
    local last = math.min(first + 999, #keys)
    if call('EXISTS', unpack(keys, first, last)) > 0 then
      while call('EXISTS', keys[first]) == 0 do
        first = first + 1
      end
      return first
    end
  end
  return num - done
end

local function hold(slot, mode, head, position, hash, run, num)
  local edge, done = false, 0
  if mode > 0 then
    edge = load_edge(head)
    if not edge or sub(edge.hashes, position * 8 + 1, position * 8 + 8) ~= hash then
      edge = false
    elseif mode == 1 then
      position = position + 1
    end
  end
  while done < num do
    local count = 0
    if edge and position < edge.size then
      count = match(edge, position, run, done, num)
    end
    if count == 0 then
      local first = sub(run, done * 8 + 1, done * 8 + 8)
      local known = load_edge(first)
      if known then
        edge, head, position = known, first, 0
        count = match(edge, 0, run, done, num)
      elseif edge and position == edge.size and edge.size < MOST then
        count = math.min(fresh(run, done, num), MOST - edge.size)
        edge.hashes = edge.hashes .. sub(run, done * 8 + 1, (done + count) * 8)
        edge.size = edge.size + count
      else
        count = math.min(fresh(run, done, num), MOST)
        head, position = first, 0
        edge = { size = count, hashes = sub(run, done * 8 + 1, (done + count) * 8), depths = {}, maps = {} }
        edges[head] = edge
      end
    end
    enter(edge, head, slot, position, count)
    placed[#placed + 1] = head .. pack_('<HH', position, count)
    done, position = done + count, position + count
  end
end

local function packed_map(map, size)
  local bytes = {}
  for i = 0, math.ceil(size / 8) - 1 do
    local value = 0
    for j = 0, 7 do
      if map[i * 8 + j] then
        value = value + bit.lshift(1, j)
      end
    end
    bytes[i + 1] = char(value)
  end
  return table.concat(bytes)
end

local function save(head, edge)
  local size = 0
  for slot, depth in pairs(edge.depths) do
    size = math.max(size, depth)
    for i in pairs(edge.maps[slot] or {}) do
      size = math.max(size, i + 1)
    end
  end
  if size == 0 then
    call('DEL', tree .. 'e' .. head)
    return
  end
  local full, parts = {}, {}
  for slot, depth in pairs(edge.depths) do
    local map = edge.maps[slot]
    if depth == size then
      full[#full + 1] = slot
    else
      local bytes = map and packed_map(map, size) or ''
      parts[#parts + 1] = pack_('<HHB', slot, depth, #bytes) .. bytes
    end
  end
  table.sort(full) -- equal sets are equal strings
  for i, slot in ipairs(full) do
    full[i] = char(slot % 256, math.floor(slot / 256))
  end
  local counts = pack_('<HHH', size, #full, #parts)
  local hashes = size < edge.size and sub(edge.hashes, 1, size * 8) or edge.hashes
  call('SET', tree .. 'e' .. head, counts .. hashes .. table.concat(full) .. table.concat(parts))
end

local known, is_ours = {}, call('GET', tree .. 'a') == ARGV[2]
local function is_known(slot)
  if known[slot] == nil then
    known[slot] = is_ours and call('HEXISTS', tree .. 's', pack_('<H', slot)) == 1
    if not known[slot] then
      gone[#gone + 1] = slot
    end
  end
  return known[slot]
end

local from = 1
while from <= #ops do
  local kind, slot = unpack_('<c1H', ops, from)
  if kind == 'H' then
    local mode, head, position, hash, num = unpack_('<Bc8Hc8H', ops, from + 3)
    local first = from + 24
    from = first + num * 8
    if is_known(slot) then
      hold(slot, mode, head, position, hash, sub(ops, first, from - 1), num)
    end
  elseif kind == 'R' then
    local head, num = unpack_('<c8H', ops, from + 3)
    local first = from + 13
    from = first + num
    local edge = is_known(slot) and load_edge(head)
    if edge and edge.depths[slot] then
      leave(edge, head, slot, sub(ops, first, from - 1))
    end
  else
    local key, num = tree .. 'w' .. pack_('<H', slot), unpack_('<H', ops, from + 3)
    from = from + 5
    for _, head in ipairs(call('SPOP', key, num)) do
      local edge = load_edge(head)
      if edge and edge.depths[slot] then
        edge.depths[slot], edge.maps[slot], edge.is_changed = nil, nil, true
      end
    end
    left = left + call('SCARD', key)
  end
end
for head, edge in pairs(edges) do
  if edge and edge.is_changed then
    save(head, edge)
  end
end
for slot, changes in pairs(entered) do
  local key = tree .. 'w' .. pack_('<H', slot)
  for head, verb in pairs(changes) do
    call(verb, key, head)
  end
end
return { table.concat(placed), gone, left }
