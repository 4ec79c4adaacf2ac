output "nodes" {
  description = "The nodes, the launcher first, then the workers by number. `endpoint`: the id and the name of the EC2 Instance Connect Endpoint that was made."
  value = [
    for name in concat(var.launcher_type != "" ? ["launcher"] : [], [
      for number in sort([for worker in keys(local.workers) : format("%06d", trimprefix(worker, "worker-"))]) :
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

output "log_in" {
  description = "How to log in to the launcher of `multinode_mpi`. From there: ssh worker-1."
  value       = var.multinode_mpi ? "ssh ubuntu@${aws_instance.this["launcher"].public_ip}" : null
}

output "mpirun" {
  description = "What starts a program on both workers of `multinode_mpi`, from the launcher."
  value       = var.multinode_mpi ? "mpirun -np 2 -H ${join(",", local.ranks)} -x MASTER_ADDR=${local.ranks[0]} -x MASTER_PORT=1234 python3 /test/multinode_ddp_mpi.py 1000 1000" : null
}
