output "nodes" {
  description = "The nodes, the launcher first, then the workers by number. `endpoint`: the id and the name of the EC2 Instance Connect Endpoint that was made."
  value = [
    for name in concat(["launcher"], [
      for number in sort([for worker in keys(local.workers) : format("%06d", trimprefix(worker, "worker-")) if !contains(var.apart, worker)]) :
      "worker-${tonumber(number)}"
      ]) : {
      name            = name
      role            = local.nodes[name].role
      id              = aws_instance.this[name].id
      instance_type   = aws_instance.this[name].instance_type
      zone            = aws_instance.this[name].availability_zone
      address         = aws_instance.this[name].public_ip
      private_address = aws_instance.this[name].private_ip
      endpoint        = name == "launcher" ? one([for one in aws_ec2_instance_connect_endpoint.this : "${one.id}/${one.dns_name}"]) : null
    }
  ]
}

output "launch" {
  description = "What workers are launched with that are not made here (`apart`)."
  value = {
    subnet_id       = local.subnet_id
    groups          = [aws_security_group.nodes.id]
    key_name        = one([for pair in aws_key_pair.this : pair.key_name])
    placement_group = one([for group in aws_placement_group.this : group.name])
    reserved_group  = one(local.reserved)
    private         = var.private
    # Of types with EFA, whose interfaces they describe: by type, else `workers`.
    templates = { for key, one in aws_launch_template.this : key => { id = one.id, version = one.latest_version } if var.efa }
  }
}
