"""Discovery of workers in Kubernetes: lists and watches of its API, and the endpoints that follow from them.

    API server ──lists, events──► ApiObjects ──► endpoints ──► members of the roster
      client        reflector       watch       tables, inference_pools    membership

watched_sources every k8s:// URL, with its watches        membership  endpoints join the roster, drain, leave
reflector       the state machine of lists and watches    watch       the same with a connection
endpoints       endpoints of pods and slices              tables      endpoints of all objects of a source
inference_pools their pods and ports      api_objects objects and events as the API sends them
client          requests to the API server                cluster     its address, token and CA
queries         the objects of a URL                      single_list endpoints without a watch
metrics         metrics              pool_objects    objectives and rewrites of a pool
inference_objects  what these objects give
"""
