"""Requests made of bodies (`core/request.py`): parsed, judged, freed of what may not go on. Pure.

client_body      encoding, form, fields, model and session of a client's body
parsing          a body of any size below 1 MiB            field_types      types of fields, rejected by name
large_body       bodies of 1 MiB and more                  outline          where the fields of one lie
large_media      media of one, scoped to a tenant          abridged         a body without its long texts
multipart        forms with an upload                      named_session    the session id of a request
model_name       the model that is checked and sent        model_alias      one model under several names
field_judgement  every field of every engine, judged       steering         fields removed or checked
cache_salt       the tenant's salt in the body             adapter_field    an adapter named beside the model
media_uuid       media ids scoped to a tenant       model_rewrite    a model in place of the client's
"""
